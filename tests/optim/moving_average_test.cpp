// Moving averages of weights, and what a swap promises.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <map>
#include <optional>
#include <string>

#include "lockstep/testing/local_replicas.h"
#include "tests/support/autocast.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/strategies.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;
using testing::expect_error;
using testing::expect_step_error;
using torch::Tensor;

class MovingAverageOf : public ::testing::TestWithParam<testing::StrategyCase> {
 protected:
  void step(const MovingAverage& ema, double gradient = 1) {
    strategy_->run([&](ReplicaContext& ctx) {
      weight_.value(ctx).mutable_grad() = torch::full({3}, gradient);
      optimizer_.step(ctx);
      ema.update(ctx);
    });
  }
  static Tensor average(const MovingAverage& ema, std::size_t i = 0) { return ema.variables().at(i).read(); }
  static std::string bits_of(const Variable& variable) {
    std::vector<std::pair<std::string, Tensor>> all;
    for (const Tensor& component : variable.components()) all.emplace_back("", component);
    return sha256_of(all);
  }

  const std::unique_ptr<Strategy> strategy_ = GetParam().make();
  const Variable weight_ = strategy_->make_variable(torch::tensor({1.f, -0.f, 3.f}), {.name = "weight"});
  const Optimizer optimizer_ = strategy_->make_optimizer(std::vector<Variable>{weight_}, torch::optim::SGDOptions(0.1));
  const std::vector<Variable> variables_{weight_};
};

TEST_P(MovingAverageOf, CopiesFirstAndFollowsThen) {
  const auto ema = strategy_->make_moving_average(variables_, {.decay = 0.9});
  EXPECT_TRUE(torch::equal(average(ema), weight_.read())) << "before the first update";
  step(ema);
  EXPECT_TRUE(torch::equal(average(ema), weight_.read()));
  Tensor expected = weight_.read();
  for (int i = 0; i < 4; ++i) {
    step(ema, i);
    expected = 0.9 * expected + 0.1 * weight_.read();
    EXPECT_TRUE(torch::allclose(average(ema), expected, 1e-6, 1e-7)) << average(ema) << expected;
    EXPECT_FALSE(i > 0 && torch::equal(average(ema), weight_.read()));
  }
  for (const Tensor& component : ema.variables()[0].components()) EXPECT_TRUE(torch::equal(component, average(ema)));
  EXPECT_EQ(ema.updates(), 5);
}

TEST_P(MovingAverageOf, AModuleStartsAnewWhereOtherWeightsAreLoaded) {
  const auto model = strategy_->make_module([] { return nn::Linear(2, 2); });
  const auto optimizer = strategy_->make_optimizer(model, torch::optim::SGDOptions(0.1));
  const auto ema = strategy_->make_moving_average(model, {.decay = 0.5});
  const auto step = [&] {
    strategy_->run([&](ReplicaContext& ctx) {
      for (auto& parameter : model(ctx)->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
      optimizer.step(ctx);
      ema.update(ctx);
    });
  };
  const std::map<std::string, Tensor> ones{{"weight", torch::ones({2, 2})}, {"bias", torch::ones({2})}};
  const auto swapped_in = [&] {
    const auto scope = ema.swap();
    return model.state();
  };
  model.load(ones);
  EXPECT_TRUE(swapped_in().at("weight").equal(ones.at("weight"))) << "before the first update";
  for (int i = 0; i < 3; ++i) step();
  ASSERT_FALSE(swapped_in().at("weight").equal(ones.at("weight")));
  model.load({{"weight", ones.at("weight")}}, {.allow_missing = true});
  EXPECT_TRUE(swapped_in().at("weight").equal(ones.at("weight")));
  EXPECT_FALSE(swapped_in().at("bias").equal(ones.at("bias"))) << "what was not loaded has its own average";
  EXPECT_EQ(ema.updates(), 3) << "which goes on";
  model.load(ones);
  EXPECT_TRUE(swapped_in().at("bias").equal(ones.at("bias")));
  EXPECT_EQ(ema.updates(), 0);
  step();
  EXPECT_TRUE(swapped_in().at("bias").equal(model.state().at("bias"))) << "the first update copies";
}

TEST_P(MovingAverageOf, OfEqualWeightsStaysExactlyEqual) {
  const auto ema = strategy_->make_moving_average(variables_, {.decay = 0.999});
  for (int i = 0; i < 10; ++i) step(ema, 0);
  EXPECT_TRUE(torch::equal(average(ema), weight_.read()));
}

TEST_P(MovingAverageOf, WarmsUp) {
  const auto ema = strategy_->make_moving_average(variables_, {.decay = 0.25, .warm_up = true});
  step(ema);
  Tensor expected = weight_.read();
  for (int n = 1; n < 5; ++n) {
    step(ema);
    const double keep = std::min(0.25, (1.0 + n) / (10.0 + n));  // 2/11, 3/12, 4/13, ...
    expected = keep * expected + (1 - keep) * weight_.read();
    EXPECT_TRUE(torch::allclose(average(ema), expected, 1e-6, 1e-7)) << n;
  }
}

TEST_P(MovingAverageOf, IsAVariableOfTheStrategy) {
  const auto model = strategy_->make_module([] { return nn::Sequential(nn::Linear(2, 3), nn::BatchNorm1d(3)); });
  const auto ema = strategy_->make_moving_average(model);
  std::vector<std::string> names;
  for (const Variable& variable : ema.variables()) {
    EXPECT_FALSE(variable.trainable());
    EXPECT_EQ(variable.synchronization(), VariableSynchronization::kOnWrite);
    names.push_back(variable.name());
  }
  EXPECT_EQ(names, (std::vector<std::string>{"model.0.weight/average", "model.0.bias/average", "model.1.weight/average",
                                             "model.1.bias/average"}))
      << "buffers have none";
  names.push_back("model.0.weight/average_updates");
  for (const std::string& name : names) {
    const auto all = strategy_->variables();
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const Variable& one) { return one.name() == name; })) << name;
  }
}

TEST_P(MovingAverageOf, OfHalfPrecisionIsFloat) {
  const Variable half = strategy_->make_variable(torch::ones({3}, torch::kBFloat16), {.name = "half"});
  const auto ema = strategy_->make_moving_average(std::vector<Variable>{half}, {.decay = 0.999});
  EXPECT_EQ(ema.variables()[0].dtype(), torch::kFloat);
  strategy_->run([&](ReplicaContext& ctx) { ema.update(ctx); });
  half.assign(torch::full({3}, 2));
  for (int i = 0; i < 100; ++i) strategy_->run([&](ReplicaContext& ctx) { ema.update(ctx); });
  const double expected = 2 - std::pow(0.999, 100);
  EXPECT_NEAR(average(ema)[0].item<double>(), expected, 1e-4) << "in bfloat16 it would still be 1";
  const auto swapped = ema.swap();
  EXPECT_EQ(half.dtype(), torch::kBFloat16);
  EXPECT_NEAR(half.read()[0].item<double>(), expected, 0x1p-8);
}

TEST_P(MovingAverageOf, SwapsForAnEvaluationAndPutsTheSameBitsBack) {
  const auto ema = strategy_->make_moving_average(variables_, {.decay = 0.5});
  for (int i = 0; i < 3; ++i) step(ema);
  const std::string before = bits_of(weight_);
  const Tensor expected = average(ema);
  const auto seen = [&] {
    return strategy_->evaluate([&](ReplicaContext& ctx) { return weight_.value(ctx).clone(); });
  };
  {
    const auto swapped = ema.swap();
    for (const Tensor& value : seen()) EXPECT_TRUE(torch::equal(value, expected));
    EXPECT_TRUE(torch::equal(weight_.read(), expected));
    EXPECT_TRUE(torch::equal(average(ema), expected));
  }
  EXPECT_EQ(bits_of(weight_), before);
  try {
    const auto swapped = ema.swap();
    strategy_->evaluate([&](ReplicaContext&) { throw std::runtime_error("evaluation"); });
    FAIL();
  } catch (const ReplicaError&) {
  }
  EXPECT_EQ(bits_of(weight_), before) << "though the evaluation threw";
  step(ema);  // and training goes on
}

TEST_P(MovingAverageOf, IsSeenByModulesInEvaluationAndExport) {
  const auto model = strategy_->make_module([] { return nn::Linear(2, 1); });
  const auto optimizer = strategy_->make_optimizer(model, torch::optim::SGDOptions(0.1));
  const auto ema = strategy_->make_moving_average(model, {.decay = 0.5});
  const Tensor input = torch::ones({1, 2});
  for (int i = 0; i < 3; ++i) {
    strategy_->run([&](ReplicaContext& ctx) {
      model(ctx)->forward(input).sum().backward();
      optimizer.step(ctx);
      ema.update(ctx);
    });
  }
  const auto output = [&] {
    return strategy_->evaluate([&](ReplicaContext& ctx) { return model(ctx)->forward(input); })[0].item<double>();
  };
  const double trained = output();
  const double expected = (average(ema, 0).sum() + average(ema, 1).sum()).item<double>();
  {
    const auto swapped = ema.swap();
    EXPECT_FLOAT_EQ(output(), expected);
    EXPECT_FLOAT_EQ(model.export_module()->forward(input).item<double>(), expected);
  }
  EXPECT_NE(trained, expected);
  EXPECT_EQ(output(), trained);
}

TEST_P(MovingAverageOf, LeavesBuffersWhichMayBeMadeAnewWhileItStandsIn) {
  const auto model = strategy_->make_module([] { return nn::BatchNorm1d(3); });
  const auto ema = strategy_->make_moving_average(model);
  const auto before = model.state();
  const auto swapped = ema.swap();
  EXPECT_TRUE(torch::equal(model.state().at("running_mean"), before.at("running_mean")));
  strategy_->run([&](ReplicaContext& ctx) { model(ctx)->forward(torch::ones({4, 3})); });
  EXPECT_TRUE(torch::allclose(model.state().at("running_mean"), torch::full({3}, 0.1)));
}

TEST_P(MovingAverageOf, WhileItStandsInTrainingAndWritesAreRefused) {
  const auto ema = strategy_->make_moving_average(variables_, {.decay = 0.5});
  const Variable other = strategy_->make_variable(torch::ones({3}), {.name = "other"});
  const auto for_other = strategy_->make_optimizer(std::vector<Variable>{other}, torch::optim::SGDOptions(1));
  step(ema);
  const std::string before = bits_of(weight_);
  {
    const auto swapped = ema.swap();
    const char* code = "LS-AVERAGE-SWAPPED";
    const auto update = [&](ReplicaContext& ctx) { ema.update(ctx); };
    expect_step_error<UsageError>([&] { step(ema); }, code, {"optimizer.step", "variable 'weight'"});
    expect_step_error<UsageError>([&] { strategy_->run(update); }, code,
                                  {"MovingAverage::update", "variable 'weight'"});
    expect_error<UsageError>([&] { weight_.assign(torch::ones({3})); }, code, {"variable 'weight'"});
    expect_error<UsageError>([&] { strategy_->update(weight_, [](Tensor& value) { value.zero_(); }); }, code,
                             {"variable 'weight'"});
    expect_error<UsageError>([&] { (void)ema.swap(); }, code, {"second swap", "variable 'weight'"});
    strategy_->run([&](ReplicaContext& ctx) {
      other.value(ctx).mutable_grad() = torch::ones({3});
      EXPECT_TRUE(for_other.step(ctx).applied) << "of other variables";
    });
  }
  EXPECT_EQ(bits_of(weight_), before);
  EXPECT_EQ(ema.updates(), 1);
  step(ema);
  weight_.assign(torch::ones({3}));
}

TEST_P(MovingAverageOf, IsUndoneByARunThatFails) {
  const auto ema = strategy_->make_moving_average(variables_, {.decay = 0.5});
  for (int i = 0; i < 2; ++i) step(ema);
  const std::string before = bits_of(ema.variables()[0]);
  EXPECT_THROW(strategy_->run([&](ReplicaContext& ctx) {
    weight_.value(ctx).mutable_grad() = torch::ones({3});
    optimizer_.step(ctx);
    ema.update(ctx);
    ema.update(ctx);
    throw std::runtime_error("later");
  }),
               ReplicaError);
  EXPECT_EQ(bits_of(ema.variables()[0]), before);
  EXPECT_EQ(ema.updates(), 2);
}

TEST_P(MovingAverageOf, TakesInNothingThatSomethingElseWrote) {
  const auto ema = strategy_->make_moving_average(variables_, {.decay = 0.5});
  step(ema);
  const std::string before = bits_of(ema.variables()[0]);
  const auto write_and_update = [&](ReplicaContext& ctx) {
    if (ctx.replica_id() == 0) weight_.value(ctx).data().add_(1);
    ema.update(ctx);
  };
  expect_step_error<DivergenceError>([&] { strategy_->run(write_and_update); }, "LS-FOREIGN-WRITE",
                                     {"variable 'weight'", "step 1"});
  EXPECT_EQ(bits_of(ema.variables()[0]), before);
  expect_error<DivergenceError>([&] { (void)ema.swap(); }, "LS-FOREIGN-WRITE", {"variable 'weight'", "step 1"});
}

TEST_P(MovingAverageOf, HasANameOfItsOwn) {
  const auto slow = strategy_->make_moving_average(variables_, {.decay = 0.9});
  expect_error<UsageError>([&] { strategy_->make_moving_average(variables_, {.decay = 0.5}); }, "LS-NAME-TAKEN",
                           {"variable", "'weight/average'"});
  const auto fast = strategy_->make_moving_average(variables_, {.decay = 0.5, .name = "fast"});
  EXPECT_EQ(fast.variables()[0].name(), "weight/fast");
  for (int i = 0; i < 2; ++i) {
    step(slow);
    strategy_->run([&](ReplicaContext& ctx) { fast.update(ctx); });
  }
  EXPECT_FALSE(torch::equal(average(slow), average(fast)));
}

TEST_P(MovingAverageOf, OutlivesItsStrategy) {
  auto strategy = GetParam().make();
  const Variable v = strategy->make_variable(torch::ones({2}), {.name = "v"});
  const auto ema = strategy->make_moving_average(std::vector<Variable>{v});
  std::optional<SwapScope> swapped = ema.swap();
  strategy.reset();
  swapped.reset();
  EXPECT_TRUE(torch::equal(ema.variables()[0].read(), v.read()));
}

TEST_P(MovingAverageOf, MisuseIsNamed) {
  const auto expect_refused = [&](const std::vector<Variable>& variables, const MovingAverageOptions& options,
                                  std::string_view code, std::initializer_list<std::string_view> values = {},
                                  const testing::Where& where = testing::Where::current()) {
    expect_error<UsageError>([&] { strategy_->make_moving_average(variables, options); }, code, values, where);
  };
  expect_refused(variables_, {.decay = 1.0}, "LS-OPTION", {".decay = 1"});
  expect_refused(variables_, {.decay = -0.1}, "LS-OPTION", {".decay = -0.1"});
  expect_refused(variables_, {.decay = std::nan("")}, "LS-OPTION", {".decay = nan"});
  expect_refused(variables_, {.name = ""}, "LS-OPTION", {".name"});
  expect_refused({}, {}, "LS-NO-VARIABLES", {"moving average"});
  expect_refused({Variable()}, {}, "LS-EMPTY-HANDLE", {"Variable"});
  expect_refused({weight_, weight_}, {}, "LS-VARIABLE-TWICE", {"variable 'weight'"});
  const Variable whole = strategy_->make_variable(torch::ones({2}, torch::kInt), {.name = "whole"});
  expect_refused({whole}, {}, "LS-VARIABLE-KIND", {"variable 'whole'", "Int"});
  const Variable free = strategy_->make_variable(
      torch::ones({2}),
      {.name = "free", .synchronization = VariableSynchronization::kOnRead, .aggregation = VariableAggregation::kMean});
  expect_refused({weight_, free}, {}, "LS-VARIABLE-KIND", {"variable 'free'", "sync-on-read"});
  testing::LocalReplicas other({.replicas = 2});
  expect_error<UsageError>([&] { other.make_moving_average(variables_); }, "LS-OTHER-STRATEGY", {"variable 'weight'"});
  const auto ema = strategy_->make_moving_average(variables_);  // nothing is left of those that were refused
  const auto update = [&](ReplicaContext& ctx) { ema.update(ctx); };
  expect_step_error<UsageError>([&] { other.run(update); }, "LS-OTHER-STRATEGY", {"MovingAverage::update"});
  expect_step_error<UsageError>([&] { strategy_->evaluate(update); }, "LS-INSIDE-EVALUATE", {"MovingAverage::update"});
  const auto swap = [&](ReplicaContext&) { (void)ema.swap(); };
  expect_step_error<UsageError>([&] { strategy_->run(swap); }, "LS-INSIDE-STEP", {"MovingAverage::swap"});
  const auto count = [&](ReplicaContext&) { ema.updates(); };
  expect_step_error<UsageError>([&] { strategy_->run(count); }, "LS-INSIDE-STEP", {"MovingAverage::updates"});
}

TEST_P(MovingAverageOf, IsSeenUnderAutocastToo) {
  // Autocast caches casted weights; after a swap, the cache of before would be silently stale.
  const auto model = strategy_->make_module([] { return nn::Linear(4, 4); });
  const auto ema = strategy_->make_moving_average(model);
  for (const Variable& one : model.variables()) one.assign(torch::ones(one.sizes()));  // the average stays
  using testing::set_autocast;
  const auto output = [&] {
    return strategy_->evaluate([&](ReplicaContext& ctx) { return model(ctx)->forward(torch::ones({1, 4})); });
  };
  set_autocast(true);
  const auto trained = output();
  {
    const auto swapped = ema.swap();
    const auto averaged = output();
    for (const Tensor& value : averaged) EXPECT_FALSE(torch::equal(value, trained[0]));
  }
  for (const Tensor& value : output()) EXPECT_TRUE(torch::equal(value, trained[0]));
  set_autocast(false);
  at::autocast::clear_cache();
}

INSTANTIATE_TEST_SUITE_P(Strategies, MovingAverageOf, ::testing::ValuesIn(testing::strategy_cases()),
                         [](const auto& one) { return one.param.name; });

class MovingAverageOn : public ::testing::TestWithParam<int64_t> {};

TEST_P(MovingAverageOn, IsOneDevicesOnAnyLanes) {
  testing::expect_same_as_one_device(
      [](Strategy& strategy, const auto& observe) {
        const auto model =
            strategy.make_module([] { return nn::Sequential(nn::Linear(24, 9), nn::Tanh(), nn::Linear(9, 7)); });
        const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1).momentum(0.9));
        const auto ema = strategy.make_moving_average(model, {.decay = 0.9, .warm_up = true});
        const auto data = strategy.distribute(testing::make_data("mlp", 100), {.global_batch = 22});
        observe();
        for (const auto& batch : data.epoch(0)) {
          strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
            ctx.scale_loss(nn::functional::cross_entropy(model(ctx)->forward(part.input), part.target)).backward();
            optimizer.step(ctx);
            ema.update(ctx);
          });
          observe();
        }
      },
      {.replicas = GetParam()});
}

INSTANTIATE_TEST_SUITE_P(Replicas, MovingAverageOn, ::testing::Values(1, 3, 4));

}  // namespace
}  // namespace lockstep
