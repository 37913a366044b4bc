// In how many rounds the workers of a fit meet: no more than those of the loop that it stands for, where nobody asks
// for anything.
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/thread_workers.h"
#include "lockstep/train/step/chief_clock.h"
#include "tests/support/scratch_folder.h"
#include "tests/train/fits.h"

namespace lockstep::testing {

namespace {

/// Counts the calls of one worker.
class CountingWorld final : public World {
 public:
  CountingWorld(std::shared_ptr<World> world, std::atomic<int64_t>& calls) : world_(std::move(world)), calls_(calls) {}
  int64_t num_workers() const override { return world_->num_workers(); }
  int64_t worker_index() const override { return world_->worker_index(); }
  std::vector<std::string> agree(const std::string& mine) override {
    ++calls_;
    return world_->agree(mine);
  }
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    ++calls_;
    world_->exchange(to, from);
  }
  HostMemory* host_memory() override { return world_->host_memory(); }
  Windows* windows() override { return world_->windows(); }
  void set_phase(const WorkerPhase& phase) noexcept override { world_->set_phase(phase); }
  void require_running() const override { world_->require_running(); }
  void abort(const std::string& reason) noexcept override { world_->abort(reason); }

 private:
  const std::shared_ptr<World> world_;
  std::atomic<int64_t>& calls_;
};

/// What each step of `body(setting)` costs one of two workers, in calls of its World: what another 64 steps add.
double calls_in_a_step(const std::function<void(const Setting&)>& body) {
  const auto calls_of = [&](int64_t steps) {
    ThreadWorkers workers(2, std::chrono::seconds(60));
    std::atomic<int64_t> calls = 0;
    const auto work = [&](int64_t w) {
      std::shared_ptr<World> world = workers.world(w);
      if (w == 0) world = std::make_shared<CountingWorld>(std::move(world), calls);
      OneOfSeveral strategy(std::move(world), 2, 1, nullptr);
      const Setting setting(strategy, 4 * steps);
      body(setting);
    };
    std::thread other([&] { work(1); });
    work(0);
    other.join();
    return calls.load();
  };
  return static_cast<double>(calls_of(128) - calls_of(64)) / 64;
}

double calls_in_a_step_of_a_loop(bool adds_up_losses) {
  return calls_in_a_step([&](const Setting& setting) {
    for (const auto& batch : setting.train.epoch(0)) {
      const auto losses = setting.strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
        const auto loss = ctx.scale_loss(cross_entropy(setting.model(ctx)->forward(part.input), part));
        loss.backward();
        setting.optimizer.step(ctx);
        return loss.detach();
      });
      if (adds_up_losses) setting.strategy.reduce(Reduction::kSum, losses);
    }
  });
}

/// Each worker has callbacks of its own, as processes have.
double calls_in_a_step_of_a_fit(const std::function<FitOptions()>& options) {
  return calls_in_a_step([&](const Setting& setting) {
    Trainer trainer(setting.strategy, setting.model, setting.optimizer, {.loss = cross_entropy});
    trainer.fit(setting.train, options());
  });
}

class RoundsOfAFit : public ScratchFolder {};

}  // namespace

TEST_F(RoundsOfAFit, AreThoseOfALoopThatAddsUpItsLosses) {
  const double expected = calls_in_a_step_of_a_loop(true);
  const std::vector<std::function<std::shared_ptr<Callback>()>> made{
      [] { return callbacks::each_step([](Trainer&, const Logs&) {}); },
      [this] { return callbacks::tensor_board({.directory = path("runs")}); },
      [this] { return callbacks::html_report({.file = path("report.html")}); }};
  for (const auto& make : made) {
    EXPECT_EQ(calls_in_a_step_of_a_fit([&] { return FitOptions{.callbacks = {make()}}; }), expected);
  }
}

TEST_F(RoundsOfAFit, AreThoseOfAPlainLoopWhereNobodyLooksAtSteps) {
  const double bare = calls_in_a_step_of_a_loop(false);
  const double with_sum = calls_in_a_step_of_a_loop(true);
  // The losses of 32 steps are added up at once.
  const double expected = bare + (with_sum - bare) / 32;
  EXPECT_EQ(calls_in_a_step_of_a_fit([] { return FitOptions(); }), expected);
  EXPECT_EQ(calls_in_a_step_of_a_fit([this] {
              return FitOptions{.callbacks = {callbacks::early_stopping({.monitor = "loss"}),
                                              callbacks::csv_log({.file = path("log.csv")})}};
            }),
            expected);
}

TEST_F(RoundsOfAFit, AreOneMoreInStepsInWhichACallbackAsks) {
  const double expected = calls_in_a_step_of_a_loop(true);
  const auto asks = [] {
    return FitOptions{.callbacks = {callbacks::each_step(
                          [](Trainer& trainer, const Logs& logs) { trainer.log("mine", logs.at("loss")); })}};
  };
  EXPECT_EQ(calls_in_a_step_of_a_fit(asks), expected + 1);
}

TEST(ChiefClock, IsAskedTwentyTimesASecondAndAtLeastInEachThirtySecondStep) {
  using internal::ChiefClock;
  /// After which of 100 steps of so many seconds it is asked.
  const auto asked = [](double seconds) {
    ChiefClock clock;
    std::vector<int64_t> steps;
    for (int64_t step = 1; step <= 100; ++step) {
      if (!clock.is_due(step)) continue;
      const double now = static_cast<double>(step) * seconds;
      clock.asked(step, now, clock.next_in(step, now));
      steps.push_back(step);
    }
    return steps;
  };
  EXPECT_EQ(asked(0.0001), (std::vector<int64_t>{1, 3, 7, 15, 31, 63, 95}));
  EXPECT_EQ(asked(0.0126).size(), 34u);  // each third one, from the second on
  EXPECT_EQ(asked(0.1).size(), 100u);
}

}  // namespace lockstep::testing
