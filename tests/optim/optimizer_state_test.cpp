// What an optimizer keeps beside the weights: slots, step counts, rates, and its name.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <limits>

#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/strategies.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::expect_step_error;
using testing::lanes;
using torch::Tensor;
namespace optim = torch::optim;

using State = std::map<std::string, Tensor>;

void expect_equal(const State& a, const State& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, value] : a) EXPECT_TRUE(torch::equal(value, b.at(name))) << name << value << b.at(name);
}

class StateOf : public ::testing::TestWithParam<testing::StrategyCase> {
 protected:
  void step(ReplicaContext& ctx, double gradient = 0.5) const {
    v_.value(ctx).mutable_grad() = torch::full({3}, gradient);
    optimizer_.step(ctx);
  }
  void run() {
    strategy_->run([&](ReplicaContext& ctx) { step(ctx); });
  }
  /// Runs a step that does `fn` and then fails.
  template <class Fn>
  void fail_after(Fn fn) {
    EXPECT_THROW(strategy_->run([&](ReplicaContext& ctx) {
      fn(ctx);
      ctx.all_reduce(Reduction::kSum, torch::ones({1}));
      throw std::runtime_error("later");
    }),
                 ReplicaError);
  }

  const std::unique_ptr<Strategy> strategy_ = GetParam().make();
  const Variable v_ = strategy_->make_variable(torch::ones({3}), {.name = "v"});
  const Optimizer optimizer_ = strategy_->make_optimizer(std::vector<Variable>{v_}, optim::AdamOptions(0.1));
};

TEST_P(StateOf, IsSlotsStepCountsAndRates) {
  run();
  const State state = optimizer_.state();
  std::vector<std::string> names;
  for (const auto& [name, value] : state) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"learning_rate/0", "v/exp_avg", "v/exp_avg_sq", "v/step"}));
  EXPECT_EQ(state.at("v/step").item<int64_t>(), 1);
  EXPECT_EQ(state.at("learning_rate/0").item<double>(), 0.1);
}

TEST_P(StateOf, LoadRefusesAsAWholeAndNamesWhatDoesNotFit) {
  run();
  const State good = optimizer_.state();
  const auto refused = [&](const std::string& name, const Tensor& value,
                           const testing::Where& where = testing::Where::current()) {
    State bad = good;
    for (auto& [other, tensor] : bad) {
      if (tensor.is_floating_point()) tensor = tensor + 1;  // so that a partial load would show
    }
    bad[name] = value;
    const std::string quoted = "'" + name + "'";
    expect_error<UsageError>([&] { optimizer_.load(bad); }, "LS-STATE-MISFIT", {optimizer_.name(), quoted}, where);
    expect_equal(optimizer_.state(), good);
  };
  refused("v/step", torch::tensor(int64_t{-1}));
  refused("v/step", torch::tensor(2.0));
  refused("v/step", torch::tensor(std::nan("")));
  refused("v/step", torch::tensor(std::numeric_limits<int64_t>::max()));
  refused("v/step", torch::tensor(1, torch::kInt));
  refused("v/step", torch::ones({1}, torch::kLong));
  refused("v/step", Tensor());
  // The second slot: the first was written by the time it was found out.
  refused("v/exp_avg_sq", torch::ones({3}).to_sparse());
  refused("v/exp_avg_sq", Tensor());
  refused("v/exp_avg_sq", torch::empty({3}, torch::device(torch::kMeta)));
  refused("v/exp_avg_sq", torch::ones({3}, torch::kComplexFloat) * c10::complex<float>(0, 1));
  refused("v/exp_avg_sq", torch::ones({4}));
  refused("learning_rate/0", torch::tensor(-0.5, torch::kDouble));
  refused("learning_rate/0", torch::tensor(std::nan(""), torch::kDouble));
  refused("learning_rate/1", torch::tensor(0.5, torch::kDouble));
  refused("w/exp_avg", torch::ones({3}));
  optimizer_.load(good);
  expect_equal(optimizer_.state(), good);
}

TEST_P(StateOf, WithoutRatesLeavesTheRates) {
  State state = optimizer_.state();
  state.erase("learning_rate/0");
  optimizer_.set_learning_rate(0.25);
  optimizer_.load(state);
  EXPECT_EQ(optimizer_.learning_rate(), 0.25);
  state["learning_rate/0"] = torch::tensor(0.5, torch::kDouble);
  optimizer_.load(state);
  EXPECT_EQ(optimizer_.learning_rate(), 0.5);
}

TEST_P(StateOf, WhatAMergeFunctionLoadsOrSetsIsUndoneByAFailedRun) {
  run();
  const State before = optimizer_.state();
  State other = before;
  other["v/step"] = torch::tensor(int64_t{7});
  other["v/exp_avg"] = torch::full({3}, 5.0);
  const auto change = [&](ReplicaContext& ctx) {
    ctx.merge_call([&](Strategy&) {
      optimizer_.load(other);
      optimizer_.set_learning_rate(0.75);
    });
  };
  fail_after(change);
  expect_equal(optimizer_.state(), before);
  strategy_->run(change);
  fail_after([](ReplicaContext&) {});
  EXPECT_EQ(optimizer_.state().at("v/step").item<int64_t>(), 7) << "a run that succeeded stays";
  EXPECT_EQ(optimizer_.learning_rate(), 0.75);
}

TEST_P(StateOf, ACompletedStepAfterALoadStaysWithItsSlotsAndCount) {
  run();
  State other = optimizer_.state();
  other["v/step"] = torch::tensor(int64_t{7});
  other["v/exp_avg"] = torch::full({3}, 5.0);
  fail_after([&](ReplicaContext& ctx) {
    ctx.merge_call([&](Strategy&) { optimizer_.load(other); });
    step(ctx);
  });
  const State after = optimizer_.state();
  EXPECT_EQ(after.at("v/step").item<int64_t>(), 8);
  EXPECT_GT(after.at("v/exp_avg")[0].item<float>(), 4);
}

TEST_P(StateOf, AnOptimizerMadeUnderInferenceModeLoadsItsOwn) {
  const Variable w = strategy_->make_variable(torch::ones({3}), {.name = "w"});
  const Optimizer made = [&] {
    const c10::InferenceMode inference;
    return strategy_->make_optimizer(std::vector<Variable>{w}, optim::AdamOptions(0.1));
  }();
  const State state = made.state();
  made.load(state);
  expect_equal(made.state(), state);
}

TEST_P(StateOf, TwoOptimizersOfAVariableHaveSlotsOfTheirOwnNames) {
  const std::vector<Variable> same{v_};
  const auto second = strategy_->make_optimizer(same, optim::AdamOptions(0.2));
  const auto third = strategy_->make_optimizer(same, optim::SGDOptions(0.2).momentum(0.5), {.name = "late"});
  EXPECT_EQ(optimizer_.name(), "optimizer");
  EXPECT_EQ(second.name(), "optimizer_1");
  EXPECT_EQ(third.name(), "late");
  EXPECT_EQ(optimizer_.slots()[0].name(), "v/exp_avg");
  EXPECT_EQ(second.slots()[0].name(), "v/optimizer_1/exp_avg");
  EXPECT_EQ(third.slots()[0].name(), "v/late/momentum_buffer");
  std::set<std::string> names;
  for (const Variable& variable : strategy_->variables()) {
    EXPECT_TRUE(names.insert(variable.name()).second) << variable.name();
  }
  EXPECT_TRUE(second.state().contains("v/exp_avg")) << "a state does not depend on the optimizer's name";
  second.load(optimizer_.state());
  expect_error<UsageError>([&] { strategy_->make_optimizer(same, optim::SGDOptions(1), {.name = "late"}); },
                           "LS-NAME-TAKEN", {"optimizer", "'late'"});
  expect_error<UsageError>([&] { strategy_->make_optimizer(same, optim::SGDOptions(-1)); }, "LS-OPTION");
  EXPECT_EQ(strategy_->make_optimizer(same, optim::SGDOptions(1)).name(), "optimizer_2") << "a failure takes no name";
  strategy_->run([&](ReplicaContext& ctx) {
    for (const Optimizer& one : {optimizer_, second, third}) {
      v_.value(ctx).mutable_grad() = torch::ones({3});
      one.step(ctx);
    }
  });
  EXPECT_EQ(third.state().at("v/step").item<int64_t>(), 1);
}

INSTANTIATE_TEST_SUITE_P(Strategies, StateOf, ::testing::ValuesIn(testing::strategy_cases()),
                         [](const auto& one) { return one.param.name; });

TEST(EmptyHandle, OfAnOptimizerOrAverageIsAMemberThatRefusesUse) {
  struct Trainer {
    Optimizer optimizer;
    MovingAverage average;
  } trainer;
  MirroredStrategy strategy({.devices = lanes(1)});
  const char* code = "LS-EMPTY-HANDLE";
  expect_error<UsageError>([&] { trainer.optimizer.state(); }, code, {"Optimizer"});
  expect_error<UsageError>([&] { trainer.optimizer.learning_rate(); }, code, {"Optimizer"});
  expect_error<UsageError>([&] { trainer.optimizer.slots(); }, code, {"Optimizer"});
  expect_error<UsageError>([&] { (void)trainer.average.swap(); }, code, {"MovingAverage"});
  expect_error<UsageError>([&] { (void)trainer.average.variables(); }, code, {"MovingAverage"});
  const auto step = [&](ReplicaContext& ctx) { trainer.optimizer.step(ctx); };
  const auto update = [&](ReplicaContext& ctx) { trainer.average.update(ctx); };
  expect_step_error<UsageError>([&] { strategy.run(step); }, code, {"Optimizer"});
  expect_step_error<UsageError>([&] { strategy.run(update); }, code, {"MovingAverage"});
  const std::vector<Variable> variables{strategy.make_variable(torch::ones({3}), {.name = "v"})};
  trainer.optimizer = strategy.make_optimizer(variables, optim::SGDOptions(0.5));
  trainer.average = strategy.make_moving_average(variables);
  EXPECT_EQ(trainer.optimizer.learning_rate(), 0.5);
  EXPECT_EQ(trainer.average.updates(), 0);
}

}  // namespace
}  // namespace lockstep
