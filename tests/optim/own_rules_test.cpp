// Update rules of the program's own.
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/types.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/optim/own_rule.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/strategies.h"

namespace lockstep {
namespace {

using testing::calling;
using testing::expect_error;
using testing::expect_step_error;
using testing::lanes;
using testing::step;
using torch::Tensor;

/// SGD with a momentum and more slots than any rule of torch::optim has, as a program would write it.
class FiveSlots final : public UpdateRule {
 public:
  std::string name() const override { return "FiveSlots"; }
  std::vector<SlotSpec> slots() const override {
    return {{.name = "a"}, {.name = "b", .initial = 2}, {.name = "c"}, {.name = "d"}, {.name = "momentum"}};
  }
  void update(const RuleInput& in) const override {
    EXPECT_EQ(in.slots.size(), 5);
    in.slots[0].add_(1);
    in.slots[1].mul_(2);
    in.slots[2].fill_(static_cast<double>(in.step));
    in.slots[3].fill_(in.learning_rate);
    in.slots[4].mul_(0.5).add_(in.gradient);
    in.weights.sub_(in.slots[4], in.learning_rate);
  }
};

class RuleOf : public ::testing::TestWithParam<testing::StrategyCase> {
 protected:
  const std::unique_ptr<Strategy> strategy_ = GetParam().make();
};

TEST_P(RuleOf, TheProgramHasItsSlotsStepAndRate) {
  const Variable w = strategy_->make_variable(torch::ones({3}), {.name = "w"});
  const Optimizer optimizer = strategy_->make_optimizer(
      std::vector<Variable>{w}, UpdateRuleOptions{.rule = std::make_shared<FiveSlots>(), .learning_rate = 0.25});
  for (int k = 0; k < 2; ++k) step(*strategy_, w, optimizer, torch::full({3}, 2.0));
  // momentum 2, then 3: 1 - 0.25 * 2 - 0.25 * 3
  EXPECT_TRUE(torch::equal(w.read(), torch::full({3}, -0.25))) << w.read();
  const std::map<std::string, Tensor> state = optimizer.state();
  const auto all_are = [&](const char* slot, double value) {
    return torch::equal(state.at(slot), torch::full({3}, value));
  };
  EXPECT_TRUE(all_are("w/a", 2) && all_are("w/b", 8) && all_are("w/c", 2) && all_are("w/d", 0.25));
  EXPECT_TRUE(all_are("w/momentum", 3));
  EXPECT_EQ(state.at("w/step").item<int64_t>(), 2);
}

TEST_P(RuleOf, ThatThrowsLeavesEverythingAsItWas) {
  const Variable a = strategy_->make_variable(torch::ones({5000}), {.name = "a"});
  const Variable b = strategy_->make_variable(torch::ones({7}), {.name = "b"});
  std::atomic<bool> throws{true};
  const Optimizer optimizer = strategy_->make_optimizer(std::vector<Variable>{a, b}, calling([&](const RuleInput& in) {
                                                          in.weights.sub_(in.gradient, in.learning_rate);
                                                          in.slots[0].add_(1);
                                                          if (throws && in.weights.numel() == 7)
                                                            throw std::domain_error("not this one");
                                                        }));
  const auto train = [&] {
    strategy_->run([&](ReplicaContext& ctx) {
      const auto share = static_cast<double>(ctx.num_replicas());
      ((a.value(ctx).sum() + b.value(ctx).sum()) / share).backward();
      optimizer.step(ctx, {.loss_scaled_by_hand = true});
    });
  };
  const std::map<std::string, Tensor> before = optimizer.state();
  try {
    train();
    ADD_FAILURE() << "the rule has thrown";
  } catch (const ReplicaError& error) {
    EXPECT_THROW(std::rethrow_if_nested(error), std::domain_error);
  }
  EXPECT_TRUE(torch::equal(a.read(), torch::ones({5000})));
  EXPECT_TRUE(torch::equal(b.read(), torch::ones({7})));
  for (const auto& [name, value] : optimizer.state()) EXPECT_TRUE(torch::equal(value, before.at(name))) << name;
  throws = false;
  train();
  EXPECT_TRUE(torch::equal(a.read(), torch::full({5000}, 0.5)));
  EXPECT_TRUE(torch::equal(b.read(), torch::full({7}, 0.5)));
}

INSTANTIATE_TEST_SUITE_P(EveryStrategy, RuleOf, ::testing::ValuesIn(testing::strategy_cases()),
                         [](const auto& each) { return std::string(each.param.name); });

TEST(OwnRule, OfElementsIsGivenTheSamePartsOnEachNumberOfLanes) {
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
    std::multiset<int64_t> expected;
    for (const int lanes_here : {1, 2}) {
      MirroredStrategy strategy({.devices = lanes(lanes_here), .replicas = 2});
      const Variable w = strategy.make_variable(torch::ones({300, 41}).to(type), {.name = "w"});
      std::mutex mutex;
      std::multiset<int64_t> parts;
      const Optimizer optimizer = strategy.make_optimizer(
          std::vector<Variable>{w}, calling([&](const RuleInput& in) {
            const std::lock_guard<std::mutex> lock(mutex);
            EXPECT_EQ(in.weights.dim(), 1);
            EXPECT_EQ(in.weights.scalar_type(), type == torch::kDouble ? torch::kDouble : torch::kFloat);
            EXPECT_EQ(in.gradient.sizes(), in.weights.sizes());
            EXPECT_FALSE(at::GradMode::is_enabled());
            EXPECT_EQ(at::get_num_threads(), 1);
            parts.insert(in.weights.numel());
          }));
      step(strategy, w, optimizer, torch::ones({300, 41}).to(type));
      int64_t all = 0;
      for (const int64_t part : parts) all += part;
      EXPECT_EQ(all, 300 * 41);
      if (lanes_here == 1) expected = parts;
      EXPECT_EQ(parts, expected) << type;
    }
  }
}

TEST(OwnRule, OfWholeVariablesIsGivenEachOnceInItsShape) {
  MirroredStrategy strategy({.devices = lanes(2), .replicas = 2});
  const Variable w = strategy.make_variable(
      torch::arange(2 * 3 * 40 * 50, torch::kFloat).reshape({2, 3, 40, 50}).contiguous(at::MemoryFormat::ChannelsLast),
      {.name = "w"});
  const Variable c = strategy.make_variable(torch::ones({3}, torch::kComplexFloat), {.name = "c"});
  const Variable empty = strategy.make_variable(torch::ones({0, 4}), {.name = "empty"});
  std::mutex mutex;
  std::map<std::vector<int64_t>, int> calls;
  const Optimizer optimizer = strategy.make_optimizer(
      std::vector<Variable>{w, c, empty}, calling(
                                              [&](const RuleInput& in) {
                                                const std::lock_guard<std::mutex> lock(mutex);
                                                ++calls[in.weights.sizes().vec()];
                                                if (in.weights.dim() == 4) {
                                                  EXPECT_EQ(in.weights[1][2][3][4].item<float>(), 10154);
                                                  EXPECT_EQ(in.gradient[1][2][3][4].item<float>(), 10154 * 2);
                                                }
                                                in.weights.sub_(in.gradient, in.learning_rate);
                                              },
                                              false));
  const Tensor start = w.read();
  strategy.run([&](ReplicaContext& ctx) {
    const Tensor loss = w.value(ctx).pow(2).sum() + c.value(ctx).abs().sum() + empty.value(ctx).sum();
    (loss / static_cast<double>(ctx.num_replicas())).backward();
    optimizer.step(ctx, {.loss_scaled_by_hand = true});
  });
  EXPECT_EQ(calls, (std::map<std::vector<int64_t>, int>{{{2, 3, 40, 50}, 1}, {{3, 2}, 1}}));
  EXPECT_TRUE(torch::equal(w.read(), torch::zeros_like(start)));
}

TEST(OwnRule, ComputesHalfPrecisionInFloat32AndRoundsOnce) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const Variable w = strategy.make_variable(torch::full({5000}, 1.0, torch::kBFloat16), {.name = "w"});
  const Optimizer optimizer = strategy.make_optimizer(std::vector<Variable>{w}, calling([](const RuleInput& in) {
                                                        in.weights.add_(1e-3).add_(3e-3);
                                                        in.slots[0].add_(in.gradient);
                                                      }));
  step(strategy, w, optimizer, torch::full({5000}, 0.5, torch::kBFloat16));
  // 1 + 2^-8 = 1.00390625 is the halfway point, and 1.0078125 the next number.
  EXPECT_TRUE(torch::equal(w.read(), torch::full({5000}, 1.0078125, torch::kBFloat16))) << w.read()[0];
  EXPECT_TRUE(torch::equal(optimizer.state().at("w/seen"), torch::full({5000}, 0.5, torch::kBFloat16)));
}

/// Each replica trains weights of its own.
struct AfterNoStep final : Synchronization {
  std::string describe() const override { return "after no step"; }
  bool trains_locally(const NewVariable& variable) const override { return variable.parameter; }
  bool averages_after(int64_t) const override { return false; }
};

TEST(OwnRule, OfVariablesThatReplicasTrainLocallyUpdatesEachReplicasOwn) {
  struct Local final : Strategy {
    Local()
        : Strategy(StrategySetup{.name = "Local",
                                 .topology = std::make_shared<HostTopology>(lanes(2), 3, /*pinned=*/false),
                                 .synchronization = std::make_shared<AfterNoStep>()}) {}
  };
  Local strategy;
  const auto model = strategy.make_module([] { return torch::nn::Linear(4, 1); });
  strategy.run([&](ReplicaContext& ctx) {
    const at::NoGradGuard no_grad;
    model(ctx)->weight.fill_(0);
  });
  const Optimizer optimizer = strategy.make_optimizer(
      model, calling([](const RuleInput& in) { in.weights.sub_(in.gradient, in.learning_rate); }));
  const PerReplica<Tensor> found = strategy.run([&](ReplicaContext& ctx) {
    const double own = 1 + static_cast<double>(ctx.replica_id().value());
    (model(ctx)->weight.sum() * (own / 3)).backward();
    optimizer.step(ctx, {.loss_scaled_by_hand = true});
    return model(ctx)->weight.detach().clone();
  });
  for (int64_t r = 0; r < 3; ++r)
    EXPECT_TRUE(torch::allclose(found[r], torch::full({1, 4}, -0.5 * static_cast<double>(r + 1)))) << found[r];
}

TEST(OwnRule, SeesTheClippedGradient) {
  MirroredStrategy strategy({.devices = lanes(2), .replicas = 2});
  const Variable w = strategy.make_variable(torch::zeros({4}), {.name = "w"});
  const Optimizer optimizer = strategy.make_optimizer(
      std::vector<Variable>{w}, calling([](const RuleInput& in) { in.weights.copy_(in.gradient); }));
  const Tensor gradient = torch::tensor({3.0F, -4.0F, 0.25F, 0.0F});
  step(strategy, w, optimizer, gradient, {.clip_value = 1.0});
  EXPECT_TRUE(torch::equal(w.read(), torch::tensor({1.0F, -1.0F, 0.25F, 0.0F}))) << w.read();
  Tensor like = torch::zeros({4}).requires_grad_();
  like.mutable_grad() = gradient.clone();
  torch::nn::utils::clip_grad_norm_(std::vector<Tensor>{like}, 1.0);
  step(strategy, w, optimizer, gradient, {.clip_global_norm = 1.0});
  EXPECT_TRUE(torch::allclose(w.read(), like.grad(), 1e-6, 1e-6)) << "another order of additions";
}

TEST(OwnRules, OfGroupsAreEachGroupsOwn) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const Variable a = strategy.make_variable(torch::ones({3}), {.name = "a"});
  const Variable b = strategy.make_variable(torch::ones({3}), {.name = "b"});
  const auto by = [](double factor) {
    return calling([factor](const RuleInput& in) { in.weights.sub_(in.gradient, in.learning_rate * factor); }, true,
                   "By" + std::to_string(factor));
  };
  using Group = ParameterGroup<UpdateRuleOptions>;
  const Optimizer optimizer = strategy.make_optimizer(std::vector<Group>{{{a}, by(1)}, {{b}}}, by(4));
  optimizer.set_learning_rate(0.25, 1);
  strategy.run([&](ReplicaContext& ctx) {
    ((a.value(ctx).sum() + b.value(ctx).sum()) / static_cast<double>(ctx.num_replicas())).backward();
    optimizer.step(ctx, {.loss_scaled_by_hand = true});
  });
  EXPECT_TRUE(torch::equal(a.read(), torch::full({3}, 0.5)));
  EXPECT_TRUE(torch::equal(b.read(), torch::zeros({3})));
}

TEST(OwnRule, ThatCannotBeIsRefused) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const std::vector<Variable> w{strategy.make_variable(torch::ones({3}), {.name = "w"})};
  class Named final : public UpdateRule {
   public:
    Named(std::string name, std::vector<SlotSpec> slots) : name_(std::move(name)), slots_(std::move(slots)) {}
    std::string name() const override { return name_; }
    std::vector<SlotSpec> slots() const override { return slots_; }
    void update(const RuleInput& /*in*/) const override {}

   private:
    const std::string name_;
    const std::vector<SlotSpec> slots_;
  };
  const auto expect_refused = [&](std::shared_ptr<const UpdateRule> rule, double rate,
                                  std::initializer_list<std::string_view> values) {
    expect_error<UsageError>(
        [&] { strategy.make_optimizer(w, UpdateRuleOptions{.rule = std::move(rule), .learning_rate = rate}); },
        "LS-OPTION", values);
  };
  const auto named = [](std::string name, std::vector<SlotSpec> slots) {
    return std::make_shared<Named>(std::move(name), std::move(slots));
  };
  expect_refused(nullptr, 0.1, {"without a rule"});
  expect_refused(named("", {}), 0.1, {"name()"});
  expect_refused(named("N", {{"step"}}), 0.1, {"'N'", "'step'"});
  expect_refused(named("N", {{"a/b"}}), 0.1, {"'N'", "'a/b'"});
  expect_refused(named("N", {{"a"}, {"a"}}), 0.1, {"'N'", "'a'"});
  expect_refused(named("N", {{""}}), 0.1, {"'N'"});
  expect_refused(named("N", {}), -1, {"learning rate"});
  const Optimizer optimizer = strategy.make_optimizer(w, UpdateRuleOptions{.rule = named("N", {})});
  expect_error<UsageError>([&] { optimizer.set_weight_decay(0.1); }, "LS-OPTION", {"'N'"});
  expect_error<UsageError>([&] { optimizer.set_momentum(0.1); }, "LS-OPTION", {"N"});
}

TEST(OwnRule, ThatReplacesItsMemoryIsToldToWriteInPlace) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const Variable w = strategy.make_variable(torch::ones({3}), {.name = "w"});
  const Optimizer optimizer = strategy.make_optimizer(
      std::vector<Variable>{w}, calling([](const RuleInput& in) { in.weights.set_data(in.weights - in.gradient); }));
  expect_step_error<UsageError>([&] { step(strategy, w, optimizer, torch::ones({3})); }, "LS-OPTION",
                                {"'Calls'", "'w'"});
  EXPECT_TRUE(torch::equal(w.read(), torch::ones({3})));
}

TEST(OwnRule, RefusesSparseGradientsByName) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const auto table =
      strategy.make_module([] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 2).sparse(true)); });
  const Optimizer optimizer = strategy.make_optimizer(table, UpdateRuleOptions{.rule = rules::lion()});
  expect_step_error<UsageError>(
      [&] {
        strategy.run([&](ReplicaContext& ctx) {
          table(ctx)->forward(torch::arange(3)).sum().backward();
          optimizer.step(ctx, {.loss_scaled_by_hand = true});
        });
      },
      "LS-NOT-DENSE", {"'Lion'"});
}

}  // namespace
}  // namespace lockstep
