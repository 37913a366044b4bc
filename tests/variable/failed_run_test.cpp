// What a failed step leaves: every variable as the run found it, but for optimizer steps that were completed.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/variable/variable_state.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/strategies.h"

namespace lockstep {
namespace {

using torch::Tensor;
using enum VariableSynchronization;
using enum VariableAggregation;

class FailedRun : public ::testing::TestWithParam<testing::StrategyCase> {
 protected:
  FailedRun() : strategy_(GetParam().make()) {}

  static Tensor filled(double value) { return torch::full({3}, value); }
  Tensor own(const ReplicaContext& ctx) const { return filled(static_cast<double>(ctx.replica_id() + 1)); }
  /// Runs a step that does `fn` and then fails on the last replica, in its own way or at a meeting.
  template <class Fn>
  void fail_after(Fn fn, bool evaluate = false) {
    const auto step = [&](ReplicaContext& ctx) {
      fn(ctx);
      if (ctx.replica_id() == strategy_->num_replicas() - 1) throw std::runtime_error("later");
      ctx.all_reduce(Reduction::kSum, torch::ones({1}));
    };
    if (evaluate) {
      EXPECT_THROW(strategy_->evaluate(step), ReplicaError);
    } else {
      EXPECT_THROW(strategy_->run(step), ReplicaError);
    }
  }
  std::vector<Tensor> everything() const {
    std::vector<Tensor> result;
    for (const Variable& variable : strategy_->variables()) {
      for (const Tensor& component : variable.components()) result.push_back(component);
    }
    return result;
  }
  void expect_unchanged(const std::vector<Tensor>& before) const {
    const auto after = everything();
    ASSERT_EQ(after.size(), before.size());
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(torch::equal(after[i], before[i])) << i << after[i];
  }

  std::unique_ptr<Strategy> strategy_;
};

TEST_P(FailedRun, LeavesAssignedVariablesAsTheyWere) {
  const Variable sum = strategy_->make_variable(filled(1), {.aggregation = kSum});
  const Variable first = strategy_->make_variable(filled(2), {.aggregation = kOnlyFirstReplica});
  const Variable total = strategy_->make_variable(filled(3), {.synchronization = kOnRead, .aggregation = kSum});
  const Variable plain = strategy_->make_variable(filled(4));
  strategy_->run([&](ReplicaContext& ctx) { sum.assign_add(ctx, own(ctx)); });  // of a run that succeeds
  const auto before = everything();
  for (const bool evaluate : {false, true}) {
    for (int times = 0; times < 2; ++times) {
      fail_after(
          [&](ReplicaContext& ctx) {
            sum.assign(ctx, own(ctx));
            sum.assign_add(ctx, own(ctx));
            first.assign(ctx, own(ctx));
            total.assign_add(ctx, own(ctx));
            ctx.merge_call([&](Strategy& strategy) {
              plain.assign(filled(9));
              total.assign(filled(9));
              strategy.update(plain, [](Tensor& value) { value.mul_(2); });
              strategy.update_from(0, first, filled(8));
            });
          },
          evaluate);
      expect_unchanged(before);
    }
  }
  strategy_->run([&](ReplicaContext& ctx) { first.assign(ctx, own(ctx)); });
  EXPECT_TRUE(torch::equal(first.read(), filled(1))) << "and everything goes on";
}

TEST_P(FailedRun, LeavesOnReadVariablesAsTheyWereWhoeverWroteThem) {
  const Variable total = strategy_->make_variable(filled(3), {.synchronization = kOnRead});
  const auto model = strategy_->make_module([] { return torch::nn::BatchNorm1d(3); });
  strategy_->run([&](ReplicaContext& ctx) { model(ctx)->forward(torch::randn({4, 3})); });
  const auto before = everything();
  fail_after([&](ReplicaContext& ctx) {
    const torch::NoGradGuard no_grad;
    total.value(ctx).add_(own(ctx));
    model(ctx)->forward(torch::randn({4, 3}));
    model(ctx)->running_var.set_data(torch::ones({1}, torch::kDouble));
  });
  expect_unchanged(before);
  strategy_->run([&](ReplicaContext& ctx) { model(ctx)->forward(torch::randn({4, 3})); });
  EXPECT_EQ(model.state().at("num_batches_tracked").item<int64_t>(), 2);
}

TEST_P(FailedRun, LeavesACompletedOptimizerStepAndUndoesWhatCameAfterIt) {
  const Variable v = strategy_->make_variable(filled(1), {.name = "v", .aggregation = kOnlyFirstReplica});
  const auto optimizer = strategy_->make_optimizer(std::vector<Variable>{v}, torch::optim::SGDOptions(0.5));
  const auto n = static_cast<double>(strategy_->num_replicas());
  const auto step = [&](ReplicaContext& ctx) {
    v.value(ctx).sum().backward();
    optimizer.step(ctx);
  };
  fail_after([&](ReplicaContext& ctx) {
    v.assign(ctx, filled(10));
    step(ctx);
  });
  EXPECT_TRUE(torch::equal(v.read(), filled(10 - 0.5 * n))) << "with the value that it stepped from";
  fail_after([&](ReplicaContext& ctx) {
    step(ctx);
    v.assign(ctx, filled(10));
  });
  EXPECT_TRUE(torch::equal(v.read(), filled(10 - n)));
}

TEST_P(FailedRun, KeepsAVariableThatItMadeWithItsInitialValue) {
  const auto use = [&](ReplicaContext& ctx) {
    const Variable all = ctx.make_variable("all", [] { return filled(5); }, {.aggregation = kSum});
    const Variable each = ctx.make_variable("each", [] { return filled(6); }, {.synchronization = kOnRead});
    all.assign(ctx, own(ctx));
    each.assign(ctx, own(ctx));
    return all;
  };
  fail_after(use);
  const auto made = strategy_->variables();
  ASSERT_EQ(made.size(), 2u);
  for (const Tensor& component : made[0].components()) EXPECT_TRUE(torch::equal(component, filled(5)));
  for (const Tensor& component : made[1].components()) EXPECT_TRUE(torch::equal(component, filled(6)));
  const auto again = strategy_->run(use);
  EXPECT_EQ(&again[0].state(), &made[0].state());
  const auto n = strategy_->num_replicas();
  EXPECT_TRUE(torch::equal(made[0].read(), filled(static_cast<double>(n * (n + 1) / 2))));
}

TEST_P(FailedRun, KeepsAModuleThatItMadeWithItsInitialBuffers) {
  fail_after([&](ReplicaContext& ctx) {
    const auto model = ctx.merge_call([&](Strategy& strategy) {
      return strategy.make_module([] { return torch::nn::BatchNorm1d(3); }, {.name = "made"});
    });
    model(ctx)->running_mean.add_(1);
  });
  for (const Variable& variable : strategy_->variables()) {
    if (variable.name() != "made.running_mean") continue;
    for (const Tensor& component : variable.components()) EXPECT_TRUE(torch::equal(component, filled(0)));
  }
}

TEST_P(FailedRun, UndoesALoadOfAWholeModule) {
  const auto model = strategy_->make_module([] { return torch::nn::BatchNorm1d(3); });
  auto other = model.state();
  for (auto& [name, value] : other) value = value + 1;
  const auto before = everything();
  fail_after([&](ReplicaContext& ctx) { ctx.merge_call([&](Strategy&) { model.load(other); }); });
  expect_unchanged(before);
  model.load(other);
  EXPECT_TRUE(torch::equal(model.state().at("weight"), other.at("weight")));
}

/// Buffers that lie in memory in every way: expanded, with overlapping strides, two views of one tensor, and dense.
struct Buffers : torch::nn::Module {
  Buffers() {
    const Tensor whole = torch::arange(12, torch::kFloat).reshape({3, 4});
    weight = register_parameter("weight", torch::ones({3}));
    expanded = register_buffer("expanded", torch::arange(3, torch::kFloat).expand({5, 3}));
    overlapping = register_buffer("overlapping", torch::arange(8, torch::kFloat).as_strided({4, 3}, {1, 2}));
    left = register_buffer("left", whole.narrow(1, 0, 3));
    right = register_buffer("right", whole.narrow(1, 2, 2));
    dense = register_buffer("dense", torch::arange(4));
  }
  Tensor weight, expanded, overlapping, left, right, dense;
};

TEST_P(FailedRun, LeavesBuffersOfAnyLayoutAsTheyWereAndThrowsTheUsersError) {
  const auto model = strategy_->make_module([] { return std::make_shared<Buffers>(); });
  const Variable after = strategy_->make_variable(filled(4), {.aggregation = kOnlyFirstReplica});
  const auto before = everything();
  std::vector<std::vector<int64_t>> strides;
  for (const Variable& variable : model.variables()) {
    strides.push_back(variable.state().component(0).strides().vec());
  }
  for (int way = 0; way < 6; ++way) {
    const auto step = [&](ReplicaContext& ctx) {
      const torch::NoGradGuard no_grad;
      Buffers& own_buffers = *model(ctx);
      own_buffers.weight.mutable_grad() = filled(1);
      after.assign(ctx, filled(9));
      for (Tensor one : own_buffers.buffers()) {
        if (way == 0) one.select(0, 0).fill_(7);
        if (way == 1) one.set_data(torch::full({2, 2}, 3.0, torch::kDouble));
        if (way == 2) one.set_data(one.clone());
        if (way == 3) one.set_data(one.select(0, 0));
        if (way == 4) one.resize_({20, 20}).fill_(1);
        if (way == 5) one.set_data(torch::empty({0}));
      }
      if (ctx.replica_id() == strategy_->num_replicas() - 1) throw std::out_of_range("mine");
      ctx.all_reduce(Reduction::kSum, torch::ones({1}));
    };
    testing::nested_message_from<std::out_of_range>([&] { strategy_->run(step); });
    expect_unchanged(before);
    strategy_->run([&](ReplicaContext& ctx) {
      Buffers& own_buffers = *model(ctx);
      EXPECT_FALSE(own_buffers.weight.grad().defined()) << "way " << way;
      const torch::NoGradGuard no_grad;
      own_buffers.expanded[0][0] += 1;
      EXPECT_EQ(own_buffers.expanded[4][0].item<float>(), own_buffers.expanded[0][0].item<float>()) << "way " << way;
      own_buffers.expanded[0][0] -= 1;
      own_buffers.left[0][2] += 1;
      EXPECT_EQ(own_buffers.right[0][0].item<float>(), own_buffers.left[0][2].item<float>()) << "way " << way;
      own_buffers.left[0][2] -= 1;
    });
    for (std::size_t i = 0; i < strides.size(); ++i) {
      EXPECT_EQ(model.variables()[i].state().component(0).strides(), strides[i]) << "way " << way;
    }
  }
}

TEST_P(FailedRun, LeavesTheModesOfModulesWhoseStructureItChanged) {
  struct Growing : torch::nn::Module {
    Growing() {
      register_module("first", torch::nn::Linear(2, 2));
      last = register_module("last", torch::nn::Dropout());
      last->eval();
    }
    torch::nn::Dropout last = nullptr;
  };
  const auto model = strategy_->make_module([] { return std::make_shared<Growing>(); });
  fail_after([&](ReplicaContext& ctx) { model(ctx)->unregister_module("first"); }, true);
  strategy_->run([&](ReplicaContext& ctx) {
    EXPECT_TRUE(model(ctx)->is_training());
    EXPECT_FALSE(model(ctx)->last->is_training());
  });
}

INSTANTIATE_TEST_SUITE_P(Strategies, FailedRun, ::testing::ValuesIn(testing::strategy_cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace lockstep
