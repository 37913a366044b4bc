// The rules of an optimizer step.
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "tests/support/autocast.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::error_from;
using testing::expect_error;
using testing::expect_step_error;
using testing::has_value;
using testing::lanes;
using testing::nested_message_from;
using torch::Tensor;
namespace optim = torch::optim;

class OptimizerOf : public ::testing::TestWithParam<std::pair<int64_t, int>> {
 protected:
  MirroredStrategy strategy_{{.devices = lanes(GetParam().second), .replicas = GetParam().first}};
  int64_t replicas() const { return GetParam().first; }
  Variable variable(const std::string& name, std::vector<int64_t> shape = {3}) {
    return strategy_.make_variable(torch::ones(shape), {.name = name});
  }
  static void set_gradient(ReplicaContext& ctx, const Variable& variable, double value) {
    variable.value(ctx).mutable_grad() = torch::full(variable.sizes(), value);
  }
};

TEST_P(OptimizerOf, SumsTheReplicasGradients) {
  const auto v = variable("v");
  const auto optimizer = strategy_.make_optimizer(std::vector<Variable>{v}, optim::SGDOptions(1));
  strategy_.run([&](ReplicaContext& ctx) {
    set_gradient(ctx, v, static_cast<double>(ctx.replica_id() + 1));
    const StepInfo info = optimizer.step(ctx);
    const double sum = static_cast<double>(replicas() * (replicas() + 1)) / 2;
    EXPECT_NEAR(info.global_norm, sum * std::sqrt(3.0), 1e-5 * sum);
    EXPECT_FALSE(v.value(ctx).grad().defined()) << "consumed";
    EXPECT_FLOAT_EQ(v.value(ctx)[0].item<float>(), static_cast<float>(1 - sum));
  });
}

TEST_P(OptimizerOf, BackwardsBeforeAStepAccumulate) {
  const auto v = variable("v");
  const auto optimizer = strategy_.make_optimizer(std::vector<Variable>{v}, optim::SGDOptions(1));
  strategy_.run([&](ReplicaContext& ctx) {
    v.value(ctx).sum().backward();
    (v.value(ctx) * 2).sum().backward();
  });
  strategy_.run([&](ReplicaContext& ctx) {
    v.value(ctx).sum().backward();
    optimizer.step(ctx);
  });
  EXPECT_FLOAT_EQ(v.read()[0].item<float>(), static_cast<float>(1 - 4 * replicas()));
}

TEST_P(OptimizerOf, AMissingGradientCountsAsZeroWhereAnotherReplicaHasOne) {
  const auto some = variable("some");
  const auto none = variable("none");
  const auto optimizer =
      strategy_.make_optimizer(std::vector<Variable>{some, none}, optim::AdamOptions(0.1).weight_decay(0.1));
  strategy_.run([&](ReplicaContext& ctx) {
    if (ctx.replica_id() == replicas() - 1) set_gradient(ctx, some, 1);
    EXPECT_TRUE(optimizer.step(ctx).applied);
  });
  EXPECT_LT(some.read()[0].item<double>(), 1);
  EXPECT_TRUE(torch::equal(none.read(), torch::ones({3}))) << "untouched where none has one";
  const auto state = optimizer.state();
  EXPECT_EQ(state.at("some/step").item<int64_t>(), 1);
  EXPECT_EQ(state.at("none/step").item<int64_t>(), 0);
  EXPECT_TRUE(torch::equal(state.at("none/exp_avg"), torch::zeros({3})));
}

TEST_P(OptimizerOf, AStepWithoutAnyGradientAppliesNothing) {
  const auto v = variable("v");
  const auto optimizer = strategy_.make_optimizer(std::vector<Variable>{v}, optim::AdamOptions(0.1));
  strategy_.run([&](ReplicaContext& ctx) {
    const StepInfo info = optimizer.step(ctx);
    EXPECT_FALSE(info.applied);
    EXPECT_EQ(info.global_norm, 0);
  });
}

TEST_P(OptimizerOf, ClipsTheSummedGradientToANorm) {
  const auto a = variable("a", {2000});
  const auto b = variable("b", {7});
  const auto optimizer = strategy_.make_optimizer(std::vector<Variable>{a, b}, optim::SGDOptions(1));
  strategy_.run([&](ReplicaContext& ctx) {
    set_gradient(ctx, a, 0.5);
    set_gradient(ctx, b, -1);
    const double norm = static_cast<double>(replicas()) * std::sqrt(0.25 * 2000 + 7);
    EXPECT_NEAR(optimizer.step(ctx, {.clip_global_norm = 2}).global_norm, norm, 1e-4 * norm);
  });
  const Tensor moved = torch::cat({a.read(), b.read()}) - 1;
  EXPECT_NEAR(moved.norm().item<double>(), 2, 1e-4);
  const Tensor before = a.read();
  strategy_.run([&](ReplicaContext& ctx) {
    set_gradient(ctx, a, 1e-6);
    optimizer.step(ctx, {.clip_global_norm = 2});
  });
  EXPECT_TRUE(torch::allclose(before - a.read(), torch::full({2000}, 1e-6 * static_cast<double>(replicas())), 0.2, 0))
      << "below it is left alone";
}

TEST_P(OptimizerOf, TheLearningRateChangesBetweenStepsByGroup) {
  const auto a = variable("a");
  const auto b = variable("b");
  using Group = ParameterGroup<optim::SGDOptions>;
  const auto optimizer =
      strategy_.make_optimizer(std::vector<Group>{{{a}, optim::SGDOptions(0.5)}, {{b}}}, optim::SGDOptions(0.25));
  EXPECT_EQ(optimizer.learning_rate(), 0.5);
  EXPECT_EQ(optimizer.learning_rate(1), 0.25);
  const auto step = [&](ReplicaContext& ctx) {
    set_gradient(ctx, a, 1.0 / static_cast<double>(replicas()));
    set_gradient(ctx, b, 1.0 / static_cast<double>(replicas()));
    optimizer.step(ctx);
  };
  strategy_.run(step);
  EXPECT_FLOAT_EQ(a.read()[0].item<float>(), 0.5f);
  EXPECT_FLOAT_EQ(b.read()[0].item<float>(), 0.75f);
  optimizer.set_learning_rate(0.125, 1);
  EXPECT_EQ(optimizer.learning_rate(0), 0.5);
  strategy_.run(step);
  EXPECT_FLOAT_EQ(b.read()[0].item<float>(), 0.625f);
  optimizer.set_learning_rate(1.0);
  EXPECT_EQ(optimizer.learning_rate(0), 1);
  EXPECT_EQ(optimizer.learning_rate(1), 1);
}

TEST_P(OptimizerOf, ABackwardThroughAGraphFromBeforeTheUpdateThrows) {
  // Two losses, stepped in the wrong order, as in a GAN: LibTorch throws after Adam, and so do we.
  const auto a = strategy_.make_variable(torch::ones({3, 3}), {.name = "a"});
  const auto optimizer = strategy_.make_optimizer(std::vector<Variable>{a}, optim::AdamOptions(0.1));
  const auto text = nested_message_from<c10::Error>([&] {
    strategy_.run([&](ReplicaContext& ctx) {
      const Tensor x = torch::ones({1, 3}).requires_grad_();
      const Tensor hidden = torch::mm(torch::mm(x, a.value(ctx)), a.value(ctx));
      hidden.sum().backward({}, /*retain_graph=*/true);
      optimizer.step(ctx);
      hidden.sum().backward();
    });
  });
  EXPECT_NE(text.find("modified by an inplace operation"), std::string::npos) << text;
}

TEST_P(OptimizerOf, ASparseGradientThatTheRuleDoesNotTakeIsRefusedByName) {
  const auto model =
      strategy_.make_module([] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true)); });
  const auto optimizer = strategy_.make_optimizer(model, optim::AdamWOptions(0.1));
  const auto step = [&](ReplicaContext& ctx) {
    model(ctx)->forward(torch::ones({2}, torch::kLong)).sum().backward();
    optimizer.step(ctx);
  };
  const auto error = error_from<ReplicaError>([&] { strategy_.run(step); });
  const std::string replica = "replica " + std::to_string(error.replica().value());
  expect_error<UsageError>([&] { std::rethrow_if_nested(error); }, "LS-NOT-DENSE",
                           {"variable 'model.weight'", "sparse gradient", replica, "AdamW"});
}

TEST_P(OptimizerOf, AGradientInAnotherMemoryLayoutIsTheSameGradient) {
  const auto v = strategy_.make_variable(torch::zeros({3, 4}), {.name = "v"});
  const auto optimizer = strategy_.make_optimizer(std::vector<Variable>{v}, optim::SGDOptions(1));
  const Tensor gradient = torch::arange(12).view({3, 4}).to(torch::kFloat);
  strategy_.run([&](ReplicaContext& ctx) {
    v.value(ctx).mutable_grad() = gradient.t().contiguous().t();
    optimizer.step(ctx);
  });
  EXPECT_TRUE(torch::equal(v.read(), -gradient * static_cast<double>(replicas())));
}

TEST_P(OptimizerOf, CheckFiniteNamesVariableAndReplicaAndAppliesNothing) {
  const auto good = variable("good");
  const auto bad = variable("bad");
  const auto optimizer = strategy_.make_optimizer(std::vector<Variable>{good, bad}, optim::AdamOptions(0.1));
  const int64_t culprit = replicas() - 1;
  const auto error = error_from<ReplicaError>([&] {
    strategy_.run([&](ReplicaContext& ctx) {
      set_gradient(ctx, good, 1);
      set_gradient(ctx, bad, ctx.replica_id() == culprit ? std::nan("") : 1);
      optimizer.step(ctx, {.check_finite = true});
    });
  });
  const std::string replica = "replica " + std::to_string(culprit);
  expect_error<NonFiniteError>([&] { std::rethrow_if_nested(error); }, "LS-NOT-FINITE", {"'bad'", replica, "step 0"});
  EXPECT_FALSE(has_value(error.what(), "'good'")) << error.what();
  EXPECT_TRUE(torch::equal(good.read(), torch::ones({3})));
  EXPECT_EQ(optimizer.state().at("good/step").item<int64_t>(), 0);
  strategy_.run([&](ReplicaContext& ctx) {
    EXPECT_FALSE(good.value(ctx).grad().defined()) << "what a failed run left is dropped";
  });
}

TEST_P(OptimizerOf, TwoOptimizersStepInOneRun) {
  const auto a = variable("a");
  const auto b = variable("b");
  const auto first = strategy_.make_optimizer(std::vector<Variable>{a}, optim::SGDOptions(1));
  const auto second = strategy_.make_optimizer(std::vector<Variable>{b}, optim::SGDOptions(2));
  strategy_.run([&](ReplicaContext& ctx) {
    set_gradient(ctx, a, 1);
    set_gradient(ctx, b, 1);
    first.step(ctx);
    EXPECT_TRUE(b.value(ctx).grad().defined()) << "the other's gradients are left alone";
    second.step(ctx);
  });
  EXPECT_FLOAT_EQ(a.read()[0].item<float>(), static_cast<float>(1 - replicas()));
  EXPECT_FLOAT_EQ(b.read()[0].item<float>(), static_cast<float>(1 - 2 * replicas()));
}

TEST_P(OptimizerOf, StateAndLoadGiveTheSameFuture) {
  const auto run = [&](const Optimizer& optimizer, const Variable& v) {
    strategy_.run([&](ReplicaContext& ctx) {
      set_gradient(ctx, v, 0.3);
      optimizer.step(ctx);
    });
  };
  const auto a = variable("a");
  const auto b = variable("b");
  const auto first = strategy_.make_optimizer(std::vector<Variable>{a}, optim::AdamOptions(0.1));
  const auto second = strategy_.make_optimizer(std::vector<Variable>{b}, optim::AdamOptions(0.1));
  for (int i = 0; i < 3; ++i) run(first, a);
  b.assign(a.read());
  std::map<std::string, Tensor> renamed;
  for (const auto& [name, value] : first.state()) renamed[name.starts_with("a/") ? "b" + name.substr(1) : name] = value;
  second.load(renamed);
  run(first, a);
  run(second, b);
  EXPECT_TRUE(torch::equal(a.read(), b.read()));
  renamed.erase("b/step");
  renamed["c"] = torch::ones({1});
  expect_error<UsageError>([&] { second.load(renamed); }, "LS-STATE-MISFIT", {"optimizer_1", "'b/step'", "'c'"});
}

TEST_P(OptimizerOf, SlotsAreVariables) {
  const auto v = variable("v");
  const auto optimizer = strategy_.make_optimizer(std::vector<Variable>{v}, optim::AdamOptions(0.1));
  std::vector<std::string> names;
  for (const Variable& slot : optimizer.slots()) names.push_back(slot.name());
  EXPECT_EQ(names, (std::vector<std::string>{"v/exp_avg", "v/exp_avg_sq"}));
}

TEST_P(OptimizerOf, DifferentOptionsOnReplicasAreNamed) {
  if (replicas() == 1) GTEST_SKIP() << "one replica cannot disagree";
  const auto v = variable("v");
  const auto optimizer = strategy_.make_optimizer(std::vector<Variable>{v}, optim::SGDOptions(1));
  const auto step = [&](ReplicaContext& ctx) {
    StepOptions options;
    if (ctx.replica_id() == 0) options.clip_global_norm = 1.0;
    optimizer.step(ctx, options);
  };
  expect_step_error<UsageError>([&] { strategy_.run(step); }, "LS-MEETING-ORDER",
                                {"replica 0", "clip_global_norm = 1"});
}

TEST_P(OptimizerOf, MisuseIsNamed) {
  const auto v = variable("v");
  const auto whole = strategy_.make_variable(torch::ones({2}, torch::kInt), {.name = "whole"});
  const auto free =
      strategy_.make_variable(torch::ones({2}), {.name = "free", .synchronization = VariableSynchronization::kOnRead});
  using Variables = std::vector<Variable>;
  const auto expect_refused = [&](const Variables& variables, const auto& options, std::string_view code,
                                  std::initializer_list<std::string_view> values = {},
                                  const testing::Where& where = testing::Where::current()) {
    expect_error<UsageError>([&] { strategy_.make_optimizer(variables, options); }, code, values, where);
  };
  expect_refused({v, v}, optim::SGDOptions(1), "LS-VARIABLE-TWICE", {"variable 'v'"});
  expect_refused({whole}, optim::SGDOptions(1), "LS-VARIABLE-KIND", {"variable 'whole'", "Int"});
  expect_refused({free}, optim::SGDOptions(1), "LS-VARIABLE-KIND", {"variable 'free'", "sync-on-read"});
  expect_refused({}, optim::SGDOptions(1), "LS-NO-VARIABLES", {"optimizer"});
  expect_refused({Variable()}, optim::SGDOptions(1), "LS-EMPTY-HANDLE", {"Variable"});
  expect_refused({v}, optim::SGDOptions(-1), "LS-OPTION", {"learning rate = -1"});
  expect_refused({v}, optim::AdamOptions(0.1).betas({1.0, 0.9}), "LS-OPTION", {"Adam", "betas[0] = 1"});
  expect_refused({v}, optim::SGDOptions(0.1).nesterov(true), "LS-OPTION", {"SGD", "nesterov"});
  MirroredStrategy other({.devices = lanes(1)});
  expect_error<UsageError>([&] { other.make_optimizer(Variables{v}, optim::SGDOptions(1)); }, "LS-OTHER-STRATEGY",
                           {"variable 'v'"});
  const auto optimizer = strategy_.make_optimizer(Variables{v}, optim::SGDOptions(1));
  expect_error<UsageError>([&] { optimizer.set_learning_rate(-0.1); }, "LS-OPTION", {"learning rate = -0.1"});
  expect_error<UsageError>([&] { optimizer.set_learning_rate(0.1, 3); }, "LS-OPTION", {"group 3"});
  expect_error<UsageError>([&] { optimizer.set_learning_rate(0.1, -1); }, "LS-OPTION", {"group -1"});
  expect_error<UsageError>([&] { optimizer.learning_rate(7); }, "LS-OPTION", {"group 7"});
  const auto step = [&](ReplicaContext& ctx) { optimizer.step(ctx); };
  expect_step_error<UsageError>([&] { other.run(step); }, "LS-OTHER-STRATEGY", {"optimizer.step"});
  expect_step_error<UsageError>([&] { strategy_.evaluate(step); }, "LS-INSIDE-EVALUATE", {"optimizer.step"});
  const auto clip_to_nothing = [&](ReplicaContext& ctx) { optimizer.step(ctx, {.clip_global_norm = 0}); };
  expect_step_error<UsageError>([&] { strategy_.run(clip_to_nothing); }, "LS-OPTION", {".clip_global_norm"});
  const auto set_rate = [&](ReplicaContext&) { optimizer.set_learning_rate(0.1); };
  expect_step_error<UsageError>([&] { strategy_.run(set_rate); }, "LS-INSIDE-STEP",
                                {"Optimizer::set_learning_rate", "between runs"});
}

INSTANTIATE_TEST_SUITE_P(Shapes, OptimizerOf,
                         ::testing::Values(std::pair<int64_t, int>{1, 1}, std::pair<int64_t, int>{4, 1},
                                           std::pair<int64_t, int>{4, 2}, std::pair<int64_t, int>{7, 7}),
                         [](const auto& shape) {
                           return "V" + std::to_string(shape.param.first) + "D" + std::to_string(shape.param.second);
                         });

TEST(Autocast, SeesTheNewWeightsAfterAStep) {
  // Autocast caches casted weights; after an update the cache of before would be silently stale.
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 2});
  const auto model = strategy.make_module([] { return torch::nn::Linear(4, 4); });
  const auto optimizer = strategy.make_optimizer(model, optim::SGDOptions(1));
  const auto outputs = strategy.run([&](ReplicaContext& ctx) {
    testing::set_autocast(true);
    const Tensor before = model(ctx)->forward(torch::ones({2, 4}));
    before.to(torch::kFloat).sum().backward();
    optimizer.step(ctx);
    return torch::stack({before.detach(), model(ctx)->forward(torch::ones({2, 4})).detach()}).to(torch::kFloat);
  });
  for (const Tensor& output : outputs) EXPECT_FALSE(torch::allclose(output[0], output[1]));
}

}  // namespace
}  // namespace lockstep
