// Update rules of the program's own on several workers, and in checkpoints.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/optim/own_rule.h"
#include "tests/support/errors.h"
#include "tests/support/host_update.h"
#include "tests/support/programs.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::calling;
using testing::expect_error;
using testing::expect_step_error;
using testing::lanes;
using testing::step;
using testing::wave;
using torch::Tensor;
namespace optim = torch::optim;

std::vector<std::string> digests_of(const std::vector<Variable>& variables, const Optimizer& optimizer) {
  optimizer.gather_slots();
  std::vector<std::string> digests;
  const auto add = [&](const Variable& one) {
    digests.push_back(sha256_of(std::vector<std::pair<std::string, Tensor>>{{one.name(), one.read()}}));
  };
  for (const Variable& one : variables) add(one);
  for (const Variable& one : optimizer.slots()) add(one);
  return digests;
}

/// Weights of several blocks and of a few numbers, whose gradients differ by replica.
void expect_same_bits_in_all_forms(const std::shared_ptr<const UpdateRule>& rule, const StepOptions& with = {}) {
  testing::expect_same_in_all_forms([&](Strategy& strategy) {
    const Variable a = strategy.make_variable(wave(301, 53, 0), {.name = "a"});
    const Variable b = strategy.make_variable(wave(3, 5, 1).to(torch::kDouble), {.name = "b"});
    const Variable c = strategy.make_variable(wave(90, 70, 2), {.name = "c"});
    const std::vector<Variable> all{a, b, c};
    const Optimizer optimizer = strategy.make_optimizer(all, UpdateRuleOptions{.rule = rule, .learning_rate = 0.01});
    for (int k = 0; k < 3; ++k) {
      strategy.run([&](ReplicaContext& ctx) {
        const double own = 1 + static_cast<double>(ctx.replica_id().value());
        Tensor loss = (a.value(ctx) * own).tanh().sum() + (b.value(ctx) * own).sin().sum().to(torch::kFloat);
        if (k != 1) loss = loss + (c.value(ctx) / own).exp().sum();
        (loss / static_cast<double>(ctx.num_replicas())).backward();
        StepOptions options = with;
        options.loss_scaled_by_hand = true;
        optimizer.step(ctx, options);
      });
    }
    return digests_of(all, optimizer);
  });
}

TEST(OwnRulesOnWorkers, OfElementsHaveTheSameBitsInEachForm) { expect_same_bits_in_all_forms(rules::nadam()); }
TEST(OwnRulesOnWorkers, OfWholeVariablesHaveTheSameBitsInEachForm) {
  expect_same_bits_in_all_forms(rules::lamb({.weight_decay = 0.1}));
}
TEST(OwnRulesOnWorkers, WithClippedGradientsHaveTheSameBitsInEachForm) {
  expect_same_bits_in_all_forms(rules::lion(), {.clip_value = 0.25});
  expect_same_bits_in_all_forms(rules::lamb(), {.clip_global_norm = 0.5});
}

TEST(OwnRulesOnWorkers, ThatThrowOnOneLeaveAllAsTheyWere) {
  for (const char* const host_memory : {"auto", "off"}) {
    for (const char* const slots : {"whole", "sliced"}) {
      const testing::HostMemoryIs memory(host_memory);
      const testing::SlotsAre divided(slots);
      testing::run_workers({2, 4, 1}, [&](Strategy& strategy) {
        const Variable w = strategy.make_variable(torch::ones({20000}), {.name = "w"});
        std::atomic<int> calls{0};
        std::atomic<bool> throws{false};
        const Optimizer optimizer = strategy.make_optimizer(std::vector<Variable>{w}, calling([&](const RuleInput& in) {
                                                              in.weights.sub_(in.gradient, in.learning_rate);
                                                              in.slots[0].add_(1);
                                                              ++calls;
                                                              if (throws) throw std::domain_error("here");
                                                            }));
        const auto train = [&] { step(strategy, w, optimizer, torch::ones({20000})); };
        train();
        EXPECT_GT(calls, 0) << "each worker has a part";
        throws = strategy.worker_index() == 1;
        EXPECT_THROW(train(), Error) << host_memory << ", " << slots;
        EXPECT_TRUE(torch::equal(w.read(), torch::full({20000}, 0.5))) << host_memory << ", " << slots;
        throws = false;
        train();
        EXPECT_TRUE(torch::equal(w.read(), torch::zeros({20000}))) << host_memory << ", " << slots;
        return 0;
      });
    }
  }
}

/// Adds `own` to weights that are updated, which a test may let differ between workers.
class Adds final : public UpdateRule {
 public:
  explicit Adds(double own, bool elementwise = true) : own_(own), elementwise_(elementwise) {}
  std::string name() const override { return "Adds"; }
  bool elementwise() const override { return elementwise_; }
  void update(const RuleInput& in) const override { in.weights.sub_(in.gradient, in.learning_rate).add_(own_); }

 private:
  const double own_;
  const bool elementwise_;
};

/// Adds what its options say.
class AddsOpenly final : public UpdateRule {
 public:
  explicit AddsOpenly(double own) : own_(own) {}
  std::string name() const override { return "AddsOpenly"; }
  void update(const RuleInput& in) const override { in.weights.add_(own_); }
  std::string options() const override { return "own = " + std::to_string(own_); }

 private:
  const double own_;
};

TEST(OwnRulesOnWorkers, ThatWereMadeWithOtherOptionsAreFound) {
  testing::expect_step_error_on_all<UsageError>(
      {2, 4, 1},
      [](Strategy& strategy) {
        const Variable w = strategy.make_variable(torch::ones({3}), {.name = "w"});
        const auto rule = std::make_shared<AddsOpenly>(strategy.worker_index() == 0 ? 0.5 : 0.25);
        step(strategy, w, strategy.make_optimizer(std::vector<Variable>{w}, UpdateRuleOptions{.rule = rule}),
             torch::ones({3}));
      },
      "LS-WORKER-ORDER", {"own = 0.500000", "own = 0.250000"});
  testing::expect_step_error_on_all<UsageError>(
      {2, 4, 1},
      [](Strategy& strategy) {
        const Variable w = strategy.make_variable(torch::ones({3}), {.name = "w"});
        const auto rule = rules::lamb({.weight_decay = strategy.worker_index() == 0 ? 0.5 : 0.25});
        step(strategy, w, strategy.make_optimizer(std::vector<Variable>{w}, UpdateRuleOptions{.rule = rule}),
             torch::ones({3}));
      },
      "LS-WORKER-ORDER", {"weight_decay = 0.5", "weight_decay = 0.25"});
}

/// Adds as the library does, and does not say so.
struct OwnReducer final : Reducer {
  std::string describe() const override { return "by a reducer of the program's own"; }
  Tensor reduce(Reduction reduction, std::span<const Tensor> values) const override {
    return TreeReducer().reduce(reduction, values);
  }
};

/// Where worker `odd` alone has another rule, a step must fail with the names of `workers`, and apply nothing.
void expect_values_differ(const testing::WorkersCase& on, int64_t odd, const char* workers,
                          const std::shared_ptr<const Reducer>& reducer = nullptr) {
  for (const bool elementwise : {true, false}) {
    const auto body = [&](Strategy& strategy) {
      const Variable first = strategy.make_variable(torch::ones({5}), {.name = "first"});
      const Variable w = strategy.make_variable(torch::ones({20000}), {.name = "w"});
      const auto rule = std::make_shared<Adds>(strategy.worker_index() == odd ? 1 : 0, elementwise);
      using Group = ParameterGroup<UpdateRuleOptions>;
      const auto zero = std::make_shared<Adds>(0);
      const Optimizer optimizer = strategy.make_optimizer(
          std::vector<Group>{{{first}, UpdateRuleOptions{.rule = zero}}, {{w}, UpdateRuleOptions{.rule = rule}}});
      expect_step_error<DivergenceError>([&] { step(strategy, w, optimizer, torch::ones({20000})); }, "LS-RULE-DIFFERS",
                                         {"'optimizer'", "'w'", "'Adds'", workers, "than on worker 0"});
      EXPECT_TRUE(torch::equal(w.read(), torch::ones({20000}))) << on;
      EXPECT_EQ(optimizer.state().at("w/step").item<int64_t>(), 0);
      return 0;
    };
    testing::run_workers(on, body, reducer);
  }
}

TEST(OwnRulesOnWorkers, ThatGiveOtherValuesOnOneAreFoundWhereEachUpdatesAll) {
  const testing::HostMemoryIs memory("off");
  expect_values_differ({2, 4, 1}, 1, "on worker 1");
  expect_values_differ({3, 4, 1}, 0, "on workers 1, 2");
  expect_values_differ({2, 4, 2}, 1, "on worker 1");
  expect_values_differ({2, 4, 1}, 1, "on worker 1", std::make_shared<OwnReducer>());
}

TEST(OwnRulesOnWorkers, ThatGiveOtherValuesOnOneHostAreFoundWhereHostsShareTheUpdate) {
  const testing::EnvironmentScope form("LOCKSTEP_UPDATE_FORM", "host-memory");
  expect_values_differ({.workers = 3, .replicas = 4, .hosts = {0, 0, 1}}, 2, "on worker 2");
  testing::run_workers({.workers = 4, .replicas = 4, .hosts = {0, 0, 1, 1}}, [](Strategy& strategy) {
    const Variable w = strategy.make_variable(torch::ones({20000}), {.name = "w"});
    const auto rule = std::make_shared<Adds>(strategy.worker_index() == 3 ? 1 : 0);
    const Optimizer optimizer = strategy.make_optimizer(std::vector<Variable>{w}, UpdateRuleOptions{.rule = rule});
    expect_step_error<DivergenceError>([&] { step(strategy, w, optimizer, torch::ones({20000})); }, "LS-RULE-DIFFERS",
                                       {"'w'", "on workers 2, 3"});
    EXPECT_TRUE(torch::equal(w.read(), torch::ones({20000})));
    return 0;
  });
}

/// Each replica trains weights of its own.
struct AfterNoStep final : Synchronization {
  std::string describe() const override { return "after no step"; }
  bool trains_locally(const NewVariable& variable) const override { return variable.parameter; }
  bool averages_after(int64_t) const override { return false; }
};

TEST(OwnRulesOnWorkers, ThatThrowOnOneWhereReplicasTrainLocallyLeaveAllAsTheyWere) {
  struct Local final : Strategy {
    explicit Local(std::shared_ptr<World> world)
        : Strategy(StrategySetup{.name = "Local",
                                 .topology = std::make_shared<HostTopology>(lanes(1), 4, /*pinned=*/false),
                                 .synchronization = std::make_shared<AfterNoStep>(),
                                 .world = std::move(world)}) {}
  };
  ThreadWorkers workers(2, std::chrono::seconds(60));
  const auto body = [](std::shared_ptr<World> world) {
    Local strategy(std::move(world));
    const auto model = strategy.make_module([] { return torch::nn::Linear(4, 1); });
    std::atomic<bool> throws{strategy.worker_index() == 1};
    const Optimizer optimizer = strategy.make_optimizer(model, calling([&](const RuleInput& in) {
                                                          in.weights.sub_(in.gradient, in.learning_rate);
                                                          if (throws) throw std::domain_error("here");
                                                        }));
    const auto weights = [&] {
      return strategy.run([&](ReplicaContext& ctx) { return model(ctx)->weight.detach().clone(); });
    };
    const auto train = [&] {
      strategy.run([&](ReplicaContext& ctx) {
        const double own = 1 + static_cast<double>(ctx.replica_id().value());
        (model(ctx)->weight.sum() * own).backward();
        optimizer.step(ctx, {.loss_scaled_by_hand = true});
      });
    };
    const PerReplica<Tensor> before = weights();
    EXPECT_THROW(train(), Error);
    const PerReplica<Tensor> after = weights();
    for (int64_t r = 0; r < 2; ++r) {
      const ReplicaId id = before.first_replica() + r;
      EXPECT_TRUE(torch::equal(after[id], before[id])) << "worker " << strategy.worker_index();
    }
    throws = false;
    train();
    EXPECT_FALSE(torch::equal(weights()[before.first_replica()], before[before.first_replica()]));
  };
  auto other = std::async(std::launch::async, [&] { body(workers.world(1)); });
  body(workers.world(0));
  other.get();
}

class OwnRuleInACheckpoint : public testing::ScratchFolder {
 protected:
  struct Training {
    explicit Training(const UpdateRuleOptions& options)
        : optimizer(strategy.make_optimizer(std::vector<Variable>{w}, options)) {}
    void step() { testing::step(strategy, w, optimizer, torch::full({3}, 2.0)); }
    MirroredStrategy strategy{{.devices = lanes(1), .replicas = 2, .seed = 1}};
    Variable w = strategy.make_variable(torch::ones({3}), {.name = "w"});
    Optimizer optimizer;
  };
  static UpdateRuleOptions named(const std::string& name) {
    return calling(
        [](const RuleInput& in) {
          in.slots[0].mul_(0.5).add_(in.gradient);
          in.weights.sub_(in.slots[0], in.learning_rate);
        },
        true, name);
  }
};

TEST_F(OwnRuleInACheckpoint, GoesOnWithTheSameBits) {
  const std::string path = (folder_ / "one").string();
  Training whole(named("Mine"));
  whole.step();
  Checkpoint(whole.strategy).save(path);
  whole.step();
  Training resumed(named("Mine"));
  const RestoreInfo info = Checkpoint(resumed.strategy).restore(path);
  EXPECT_TRUE(info.missing.empty() && info.unexpected.empty());
  resumed.step();
  EXPECT_TRUE(torch::equal(resumed.w.read(), whole.w.read()));
  EXPECT_TRUE(torch::equal(resumed.optimizer.state().at("w/seen"), whole.optimizer.state().at("w/seen")));
}

TEST_F(OwnRuleInACheckpoint, IsNotRestoredIntoARuleOfAnotherName) {
  const std::string path = (folder_ / "one").string();
  Training mine(named("Mine"));
  mine.step();
  Checkpoint(mine.strategy).save(path);
  Training other(named("Other"));
  expect_error<UsageError>([&] { Checkpoint(other.strategy).restore(path); }, "LS-CHECKPOINT-MISFIT",
                           {"'Mine'", "'Other'"});
  expect_error<UsageError>([&] { other.optimizer.load(mine.optimizer.state()); }, "LS-STATE-MISFIT",
                           {"'Mine'", "'Other'"});
  EXPECT_TRUE(torch::equal(other.w.read(), torch::ones({3})));
  EXPECT_EQ(mine.optimizer.state().at("rule/0").numel(), 4);
}

TEST_F(OwnRuleInACheckpoint, AndARuleOfTorchAreTwo) {
  const std::string by_own = (folder_ / "own").string();
  const std::string by_torch = (folder_ / "torch").string();
  class NoSlots final : public UpdateRule {
   public:
    std::string name() const override { return "NoSlots"; }
    void update(const RuleInput& in) const override { in.weights.sub_(in.gradient, in.learning_rate); }
  };
  Training own({.rule = std::make_shared<NoSlots>()});
  Checkpoint(own.strategy).save(by_own);
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2, .seed = 1});
  const Variable w = strategy.make_variable(torch::ones({3}), {.name = "w"});
  const Optimizer sgd = strategy.make_optimizer(std::vector<Variable>{w}, optim::SGDOptions(0.1));
  Checkpoint(strategy).save(by_torch);
  expect_error<UsageError>([&] { Checkpoint(strategy).restore(by_own); }, "LS-CHECKPOINT-MISFIT",
                           {"'NoSlots'", "'SGD'"});
  expect_error<UsageError>([&] { Checkpoint(own.strategy).restore(by_torch); }, "LS-CHECKPOINT-MISFIT",
                           {"torch::optim", "'NoSlots'"});
  expect_error<UsageError>([&] { sgd.load(own.optimizer.state()); }, "LS-STATE-MISFIT", {"'NoSlots'", "SGD"});
  expect_error<UsageError>([&] { own.optimizer.load(sgd.state()); }, "LS-STATE-MISFIT", {"torch::optim", "'NoSlots'"});
}

}  // namespace
}  // namespace lockstep
