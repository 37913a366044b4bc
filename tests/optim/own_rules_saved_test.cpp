// Update rules of the program's own on several workers, and in checkpoints.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
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
