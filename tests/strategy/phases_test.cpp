// What a worker tells the others of where it is in training.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/failure/phase.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

/// A World that keeps what it is told of this worker's phases.
class KeepsPhases final : public World {
 public:
  KeepsPhases(std::shared_ptr<World> world, std::vector<std::string>& phases)
      : world_(std::move(world)), phases_(phases) {}
  int64_t num_workers() const override { return world_->num_workers(); }
  int64_t worker_index() const override { return world_->worker_index(); }
  std::vector<std::string> agree(const std::string& mine) override { return world_->agree(mine); }
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    world_->exchange(to, from);
  }
  void set_phase(const WorkerPhase& phase) noexcept override { phases_.push_back(internal::describe(phase)); }
  void abort(const std::string& reason) noexcept override { world_->abort(reason); }

 private:
  const std::shared_ptr<World> world_;
  std::vector<std::string>& phases_;
};

/// The phases of each worker while `body` runs on two.
template <class Body>
std::vector<std::vector<std::string>> phases_of_both(const Body& body) {
  std::vector<std::vector<std::string>> phases(2);
  ThreadWorkers workers(2, std::chrono::seconds(60));
  std::vector<std::thread> threads;
  for (std::size_t w = 0; w < 2; ++w) {
    threads.emplace_back([&, w, world = workers.world(static_cast<int64_t>(w))] {
      testing::OneOfSeveral strategy(std::make_shared<KeepsPhases>(world, phases[w]), 4, 1, nullptr);
      phases[w].clear();
      body(static_cast<Strategy&>(strategy));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return phases;
}

/// The phases of worker 0, which are those of worker 1 too.
template <class Body>
std::vector<std::string> phases_of(const Body& body) {
  const auto phases = phases_of_both(body);
  EXPECT_EQ(phases[0], phases[1]);
  return phases[0];
}

using Texts = std::vector<std::string>;

TEST(Phases, OfAStepAreItsMeetingsAndItsEnd) {
  const auto run = [](Strategy& strategy) {
    strategy.run([](ReplicaContext& ctx) {
      ctx.all_reduce(Reduction::kSum, torch::ones({2}));
      ctx.all_reduce(Reduction::kSum, torch::ones({2}));
    });
  };
  const Texts phases = phases_of([&](Strategy& strategy) {
    run(strategy);
    run(strategy);
  });
  Texts expected;
  for (const std::string step : {"0", "1"}) {
    const std::string before = step == "0" ? "before its first step" : "between steps, after step 0";
    const std::string call = "in a call of all workers after " + step + (step == "1" ? " step" : " steps");
    for (const std::string& one :
         {call, before, "in step " + step, "in step " + step + ", at its meeting 1",
          "in step " + step + ", after its meeting 1", "in step " + step + ", at its meeting 2",
          "in step " + step + ", after its meeting 2", "in step " + step + ", at its end", "in step " + step,
          "between steps, after step " + step}) {
      expected.push_back(one);
    }
  }
  EXPECT_EQ(phases, expected);
}

TEST(Phases, OfAnEvaluationAndACallHaveTheirNames) {
  const Texts phases = phases_of([](Strategy& strategy) {
    strategy.evaluate([](ReplicaContext&) {});
    strategy.gather(strategy.per_replica([](ReplicaId) { return torch::ones({1}); }));
  });
  const auto has = [&](const std::string& text) { return std::count(phases.begin(), phases.end(), text) > 0; };
  EXPECT_TRUE(has("in an evaluation after 0 steps, at its end"));
  EXPECT_TRUE(has("in a call of all workers after 0 steps"));
  EXPECT_EQ(phases.back(), "between steps, after step 0");
}

TEST(Phases, OfWorkAreThoseOfTheWorkersThatDoIt) {
  const auto count = [](const Texts& phases, const std::string& text) {
    return std::count(phases.begin(), phases.end(), text);
  };
  const auto both = phases_of_both([](Strategy& strategy) {
    strategy.on_chief([] {});
    strategy.run([](ReplicaContext& ctx) { ctx.merge_call([](Strategy& inside) { inside.on_chief([] {}); }); });
  });
  EXPECT_EQ(count(both[0], "at work in on_chief after 0 steps"), 2);
  EXPECT_EQ(count(both[1], "at work in on_chief after 0 steps"), 0);
  EXPECT_EQ(both[0].back(), "between steps, after step 0");
  const Texts phases = phases_of([](Strategy& strategy) {
    strategy.make_module([] { return torch::nn::Linear(2, 2); });
    const Variable variable = strategy.make_variable([] { return torch::ones({2}); });
    strategy.update(variable, [](torch::Tensor& value) { value.add_(1); });
    strategy.distribute_from_function(
        [](const InputContext&) { return data::from_tensors(torch::arange(8), torch::arange(8)); },
        {.global_batch = 4});
  });
  EXPECT_EQ(count(phases, "at work in a function of the program after 0 steps"), 4);
  EXPECT_EQ(phases.back(), "before its first step");
}

TEST(Phases, OfAFailedStepEndWithIt) {
  const Texts phases = phases_of([](Strategy& strategy) {
    EXPECT_THROW(strategy.run([](ReplicaContext& ctx) {
      if (ctx.replica_id() == 0) throw std::runtime_error("a mistake");
    }),
                 ReplicaError);
  });
  EXPECT_EQ(phases.back(), "between steps, after step 0");
}

}  // namespace
}  // namespace lockstep
