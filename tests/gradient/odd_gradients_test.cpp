// Gradients and norms at the edges: NaN, infinite, huge, negated, set by hand; and losses of other runs.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "tests/support/autocast.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/strategies.h"

namespace lockstep {
namespace {

using testing::expect_step_error;
using testing::lanes;
using testing::set_autocast;
using torch::Tensor;
namespace optim = torch::optim;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

class OddGradients : public ::testing::TestWithParam<testing::StrategyCase> {
 protected:
  static void set(ReplicaContext& ctx, const Variable& variable, double value) {
    variable.value(ctx).mutable_grad() = torch::full({3}, value, variable.dtype());
  }
  int64_t last() const { return strategy_->num_replicas() - 1; }

  const std::unique_ptr<Strategy> strategy_ = GetParam().make();
  const Variable a_ = strategy_->make_variable(torch::ones({3}), {.name = "a"});
  const Variable b_ = strategy_->make_variable(torch::ones({3}), {.name = "b"});
  const Optimizer optimizer_ = strategy_->make_optimizer(std::vector<Variable>{a_, b_}, optim::SGDOptions(1));
};

TEST_P(OddGradients, AreClippedAsByLibTorch) {
  for (const double odd : {kNan, kInfinity, 1e30}) {
    a_.assign(torch::ones({3}));
    b_.assign(torch::ones({3}));
    strategy_->run([&](ReplicaContext& ctx) {
      set(ctx, a_, 1);
      set(ctx, b_, ctx.replica_id() == 0 ? odd : 0);
      optimizer_.step(ctx, {.clip_global_norm = 1});
    });
    Tensor a = torch::ones({3}).set_requires_grad(true);
    Tensor b = torch::ones({3}).set_requires_grad(true);
    a.mutable_grad() = torch::full({3}, static_cast<double>(strategy_->num_replicas()), torch::kFloat);
    b.mutable_grad() = torch::full({3}, odd, torch::kFloat);
    torch::nn::utils::clip_grad_norm_({a, b}, 1);
    EXPECT_TRUE(torch::allclose(a_.read(), 1 - a.grad(), 1e-5, 1e-6, /*equal_nan=*/true)) << odd << a_.read();
    EXPECT_TRUE(torch::allclose(b_.read(), 1 - b.grad(), 1e-5, 1e-6, /*equal_nan=*/true)) << odd << b_.read();
  }
}

TEST_P(OddGradients, ThatAreAnotherWeightsMemoryCountAsTheyWere) {
  b_.assign(torch::full({3}, 2.0));
  strategy_->run([&](ReplicaContext& ctx) {
    a_.value(ctx).mutable_grad() = b_.value(ctx).detach();
    b_.value(ctx).mutable_grad() = a_.value(ctx).detach();
    optimizer_.step(ctx);
  });
  const auto replicas = static_cast<double>(strategy_->num_replicas());
  EXPECT_TRUE(torch::equal(a_.read(), torch::full({3}, 1 - 2 * replicas))) << a_.read();
  EXPECT_TRUE(torch::equal(b_.read(), torch::full({3}, 2 - replicas))) << b_.read();
}

TEST_P(OddGradients, OverMemoryThatSomeoneElseOwnsCountAsTheyWere) {
  b_.assign(torch::full({3}, 2.0));
  strategy_->run([&](ReplicaContext& ctx) {
    a_.value(ctx).mutable_grad() = torch::from_blob(b_.value(ctx).data_ptr(), {3});
    b_.value(ctx).mutable_grad() = torch::from_blob(a_.value(ctx).data_ptr(), {3});
    optimizer_.step(ctx);
  });
  const auto replicas = static_cast<double>(strategy_->num_replicas());
  EXPECT_TRUE(torch::equal(a_.read(), torch::full({3}, 1 - 2 * replicas))) << a_.read();
  EXPECT_TRUE(torch::equal(b_.read(), torch::full({3}, 2 - replicas))) << b_.read();
}

TEST_P(OddGradients, CheckFiniteIsExact) {
  strategy_->run([&](ReplicaContext& ctx) {
    set(ctx, a_, ctx.replica_id() == 0 ? 1e30 : 0);  // its square is no float
    EXPECT_TRUE(optimizer_.step(ctx, {.check_finite = true}).applied);
  });
  EXPECT_FLOAT_EQ(a_.read()[0].item<float>(), -1e30f);
  if (strategy_->num_replicas() == 1) return;
  const auto step = [&](ReplicaContext& ctx) {
    set(ctx, a_, 3e38);  // finite on each replica, and not in the sum
    optimizer_.step(ctx, {.check_finite = true});
  };
  expect_step_error<NonFiniteError>([&] { strategy_->run(step); }, "LS-NOT-FINITE", {"'a'", "step 1"});
}

TEST_P(OddGradients, ThatAreNotFiniteSkipTheUpdateWhereTheStepAsksForIt) {
  const auto step = [&](ReplicaContext& ctx) {
    set(ctx, a_, ctx.step() == 1 && ctx.replica_id() == last() ? kInfinity : 1);
    const StepInfo info = optimizer_.step(ctx, {.skip_non_finite = true});
    EXPECT_EQ(info.applied, ctx.step() != 1);
    EXPECT_EQ(std::isfinite(info.global_norm), ctx.step() != 1);
    EXPECT_FALSE(a_.value(ctx).grad().defined());
  };
  strategy_->run(step);
  const Tensor before = a_.read();
  strategy_->run(step);
  EXPECT_TRUE(torch::equal(a_.read(), before));
  EXPECT_EQ(optimizer_.state().at("a/step").item<int64_t>(), 1);
  strategy_->run(step);
  EXPECT_TRUE(torch::equal(a_.read(), before - static_cast<double>(strategy_->num_replicas()))) << a_.read();
  EXPECT_EQ(optimizer_.state().at("a/step").item<int64_t>(), 2);
}

TEST_P(OddGradients, ANegatedViewIsReadAsWhatItShows) {
  strategy_->run([&](ReplicaContext& ctx) {
    const Tensor memory = torch::full({3}, 2.0);
    a_.value(ctx).mutable_grad() = torch::_neg_view(memory);
    optimizer_.step(ctx);
  });
  EXPECT_FLOAT_EQ(a_.read()[0].item<float>(), static_cast<float>(1 + 2 * strategy_->num_replicas()));
}

TEST_P(OddGradients, AnExpandedOneCountsForEachElement) {
  strategy_->run([&](ReplicaContext& ctx) {
    a_.value(ctx).mutable_grad() = torch::full({1}, 2.0).expand({3});
    optimizer_.step(ctx);
  });
  EXPECT_TRUE(torch::equal(a_.read(), torch::full({3}, 1 - 2.0 * static_cast<double>(strategy_->num_replicas()))));
}

TEST_P(OddGradients, OfVariablesWithoutElementsAreNoTrouble) {
  const Variable empty = strategy_->make_variable(torch::ones({0, 3}), {.name = "empty"});
  const Variable full = strategy_->make_variable(torch::ones({3}), {.name = "full"});
  const auto adam = strategy_->make_optimizer(std::vector<Variable>{empty, full}, optim::AdamOptions(0.1));
  strategy_->run([&](ReplicaContext& ctx) {
    (empty.value(ctx).sum() + full.value(ctx).sum()).backward();
    EXPECT_TRUE(adam.step(ctx, {.clip_global_norm = 1, .check_finite = true}).applied);
  });
  EXPECT_LT(full.read()[0].item<float>(), 1);
  EXPECT_EQ(adam.state().at("empty/step").item<int64_t>(), 1);
}

TEST_P(OddGradients, OfAnotherTypeAreRefusedByName) {
  const auto step = [&](ReplicaContext& ctx) {
    b_.value(ctx).mutable_grad() = Tensor();
    a_.value(ctx).unsafeGetTensorImpl()->mutable_grad() = torch::ones({3}, torch::kDouble);
    optimizer_.step(ctx);
  };
  expect_step_error<UsageError>([&] { strategy_->run(step); }, "LS-GRADIENT-MISFIT",
                                {"variable 'a'", "Double [3]", "Float [3]"});
}

TEST_P(OddGradients, WhatAnEvaluationScaledDoesNotCountInTheNextStep) {
  // A gradient set by hand, after an evaluation in which every replica had an empty part.
  strategy_->evaluate([&](ReplicaContext& ctx) { ctx.scale_loss(torch::ones({}), 0, 4); });
  strategy_->run([&](ReplicaContext& ctx) {
    set(ctx, a_, 1);
    optimizer_.step(ctx);
  });
  EXPECT_FLOAT_EQ(a_.read()[0].item<float>(), static_cast<float>(1 - strategy_->num_replicas()));
}

TEST_P(OddGradients, AWeightInAnEvaluationOrAFailedRunIsNoneInTheNextStep) {
  const auto weighted = [&](ReplicaContext& ctx) { ctx.scale_loss(torch::ones({}), 2, 4); };
  const auto empty_last_part = [&](ReplicaContext& ctx) {
    const bool last_one = ctx.replica_id() == last();
    ctx.scale_loss(torch::ones({}), last_one ? 0 : 1, 4);
    set(ctx, a_, last_one ? kNan : 1);
    optimizer_.step(ctx);
  };
  strategy_->run(empty_last_part);
  strategy_->evaluate(weighted);
  strategy_->run(empty_last_part);
  EXPECT_THROW(strategy_->run([&](ReplicaContext& ctx) {
    weighted(ctx);
    throw std::runtime_error("later");
  }),
               ReplicaError);
  strategy_->run(empty_last_part);
  EXPECT_FLOAT_EQ(a_.read()[0].item<float>(), static_cast<float>(1 - 3 * last()));
}

TEST_P(OddGradients, WhatAFailedRunScaledAsNothingIsNotLost) {
  EXPECT_THROW(strategy_->run([&](ReplicaContext& ctx) {
    ctx.scale_loss(torch::ones({}), 0, 4);
    throw std::runtime_error("later");
  }),
               ReplicaError);
  strategy_->run([&](ReplicaContext& ctx) {
    set(ctx, a_, 1);
    optimizer_.step(ctx);
  });
  EXPECT_FLOAT_EQ(a_.read()[0].item<float>(), static_cast<float>(1 - strategy_->num_replicas()));
}

TEST_P(OddGradients, ThatWaitFromAnEarlierRunAreKeptWhereThisOneHasNoPart) {
  strategy_->run([&](ReplicaContext& ctx) { ctx.scale_loss(a_.value(ctx).sum(), 2, 4).backward(); });
  strategy_->run([&](ReplicaContext& ctx) {
    ctx.scale_loss(a_.value(ctx).sum(), 0, 4).backward();
    optimizer_.step(ctx);
  });
  EXPECT_FLOAT_EQ(a_.read()[0].item<float>(), static_cast<float>(1 - 0.5 * static_cast<double>(last() + 1)));
}

TEST_P(OddGradients, AScaledUndefinedLossIsAUsageError) {
  const auto step = [](ReplicaContext& ctx) { ctx.scale_loss(Tensor(), 1, 4); };
  expect_step_error<UsageError>([&] { strategy_->run(step); }, "LS-NOT-DENSE", {"scale_loss", "undefined"});
}

INSTANTIATE_TEST_SUITE_P(Strategies, OddGradients, ::testing::ValuesIn(testing::strategy_cases()),
                         [](const auto& one) { return one.param.name; });

TEST(Autocast, AroundTheForwardAloneSeesTheNewWeightsInTheNextStep) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const auto model = strategy.make_module([] { return torch::nn::Linear(4, 4); });
  const auto optimizer = strategy.make_optimizer(model, optim::SGDOptions(1));
  const auto step = [&](ReplicaContext& ctx) {
    set_autocast(true);
    const Tensor output = model(ctx)->forward(torch::ones({2, 4}));
    set_autocast(false);
    output.to(torch::kFloat).sum().backward();
    optimizer.step(ctx);
    return output.detach().to(torch::kFloat);
  };
  const auto first = strategy.run(step);
  const auto second = strategy.run(step);
  for (const ReplicaId r : {ReplicaId(0), ReplicaId(1)}) EXPECT_FALSE(torch::allclose(first[r], second[r]));
}

/// Each replica trains its own weights, which become their mean after every step.
struct AfterEachStep final : Synchronization {
  std::string describe() const override { return "after each step"; }
  bool trains_locally(const NewVariable& variable) const override { return variable.parameter; }
  bool averages_after(int64_t) const override { return true; }
};

struct Local final : Strategy {
  Local()
      : Strategy(StrategySetup{.name = "Local",
                               .topology = std::make_shared<HostTopology>(lanes(1), 3, /*pinned=*/false),
                               .synchronization = std::make_shared<AfterEachStep>()}) {}
};

TEST(Autocast, SeesTheAverageOfLocallyTrainedWeights) {
  Local strategy;
  const auto model = strategy.make_module([] { return torch::nn::Linear(4, 4); });
  const auto optimizer = strategy.make_optimizer(model, optim::SGDOptions(1));
  const auto output = [&](ReplicaContext& ctx, bool cast) {
    set_autocast(cast);
    const Tensor sum = model(ctx)->forward(torch::ones({1, 4}));
    set_autocast(false);
    return sum.to(torch::kFloat).sum();
  };
  strategy.run([&](ReplicaContext& ctx) {
    (output(ctx, true) * static_cast<double>(3 * ctx.replica_id() + 1)).backward();
    optimizer.step(ctx);
    output(ctx, true);  // autocast keeps its copy of the weights of before the average
  });
  const auto with = strategy.run([&](ReplicaContext& ctx) { return output(ctx, true).item<double>(); });
  const auto without = strategy.run([&](ReplicaContext& ctx) { return output(ctx, false).item<double>(); });
  // bfloat16 has 8 bits; weights of before the average are off by a tenth and more.
  for (int64_t r = 0; r < 3; ++r) EXPECT_NEAR(with[r], without[r], 0.02 * std::abs(without[r]));
}

}  // namespace
}  // namespace lockstep
