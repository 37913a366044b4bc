// Parameters without a gradient on some or all replicas, and frozen ones: what happens to them, and what the log says.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/strategies.h"

namespace lockstep {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

class AbsentGradients : public ::testing::TestWithParam<testing::StrategyCase> {
 protected:
  AbsentGradients() {
    set_log_sink([this](LogLevel, std::string_view line) {
      if (line.find("no gradient") != std::string_view::npos) lines_.emplace_back(line);
    });
  }
  ~AbsentGradients() override { set_log_sink({}); }

  int64_t replicas() const { return strategy_->num_replicas(); }
  Variable variable(const std::string& name) const {
    return strategy_->make_variable(torch::ones({3}), {.name = name});
  }
  Optimizer adamw(const std::vector<Variable>& variables) const {
    return strategy_->make_optimizer(variables, torch::optim::AdamWOptions(0.1).weight_decay(0.1));
  }
  static void set_gradient(ReplicaContext& ctx, const Variable& variable, double value) {
    variable.value(ctx).mutable_grad() = torch::full({3}, value);
  }
  static void expect_equal(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, value] : a) EXPECT_TRUE(torch::equal(value, b.at(name))) << name;
  }

  std::vector<std::string> lines_;
  const std::unique_ptr<Strategy> strategy_ = GetParam().make();
};

TEST_P(AbsentGradients, CountAsZeroWhereAnotherReplicaHasOne) {
  const Variable absent = variable("absent");
  const Variable zero = variable("zero");
  const auto optimizer = adamw({absent, zero});
  for (int step = 0; step < 3; ++step) {
    const int64_t owner = step % replicas();
    strategy_->run([&](ReplicaContext& ctx) {
      if (ctx.replica_id() == owner) set_gradient(ctx, absent, 0.3);
      set_gradient(ctx, zero, ctx.replica_id() == owner ? 0.3 : 0);
      EXPECT_TRUE(optimizer.step(ctx).applied);
    });
  }
  EXPECT_TRUE(torch::equal(absent.read(), zero.read()));
  const auto state = optimizer.state();
  for (const char* slot : {"/exp_avg", "/exp_avg_sq", "/step"}) {
    EXPECT_TRUE(torch::equal(state.at(std::string("absent") + slot), state.at(std::string("zero") + slot))) << slot;
  }
}

TEST_P(AbsentGradients, OnAllReplicasLeaveVariableAndSlotsUntouched) {
  const Variable always = variable("always");
  const Variable once = variable("once");
  const auto optimizer = adamw({always, once});
  const auto step = [&](bool both) {
    strategy_->run([&](ReplicaContext& ctx) {
      set_gradient(ctx, always, 0.3);
      if (both) set_gradient(ctx, once, 0.3);
      optimizer.step(ctx);
    });
  };
  step(true);
  const Tensor value = once.read();
  const auto before = optimizer.state();
  step(false);
  step(false);
  EXPECT_TRUE(torch::equal(once.read(), value)) << "no weight decay either";
  const auto after = optimizer.state();
  for (const char* name : {"once/exp_avg", "once/exp_avg_sq", "once/step"}) {
    EXPECT_TRUE(torch::equal(after.at(name), before.at(name))) << name;
  }
  EXPECT_EQ(after.at("always/step").item<int64_t>(), 3);
}

TEST_P(AbsentGradients, AreNamedOnce) {
  const Variable everywhere = variable("everywhere");
  const Variable somewhere = variable("somewhere");
  const Variable nowhere = variable("nowhere");
  const auto optimizer = adamw({everywhere, somewhere, nowhere});
  const auto step = [&](ReplicaContext& ctx) {
    set_gradient(ctx, everywhere, 1);
    if (ctx.replica_id() == 0) set_gradient(ctx, somewhere, 1);
    optimizer.step(ctx);
  };
  strategy_->run(step);
  const bool alone = replicas() == 1;
  ASSERT_EQ(lines_.size(), alone ? 1u : 2u);
  EXPECT_NE(lines_.back().find("step 0: no gradient on any replica"), std::string::npos) << lines_.back();
  EXPECT_NE(lines_.back().find("1 variable: 'nowhere'"), std::string::npos) << lines_.back();
  if (!alone) {
    EXPECT_NE(lines_.front().find("no gradient on some replicas"), std::string::npos) << lines_.front();
    EXPECT_NE(lines_.front().find("1 variable: 'somewhere' (replica 1"), std::string::npos) << lines_.front();
  }
  for (int i = 0; i < 3; ++i) strategy_->run(step);
  EXPECT_EQ(lines_.size(), alone ? 1u : 2u) << "and not again";
  strategy_->run([&](ReplicaContext& ctx) {
    set_gradient(ctx, nowhere, 1);
    optimizer.step(ctx);
  });
  ASSERT_EQ(lines_.size(), alone ? 2u : 3u) << "but what is absent for the first time";
  EXPECT_NE(lines_.back().find("'everywhere'"), std::string::npos) << lines_.back();
}

TEST_P(AbsentGradients, OfManyVariablesAreOneLine) {
  std::vector<Variable> variables;
  for (int i = 0; i < 10; ++i) variables.push_back(variable("v" + std::to_string(i)));
  const auto optimizer = adamw(variables);
  strategy_->run([&](ReplicaContext& ctx) {
    set_gradient(ctx, variables.back(), 1);
    optimizer.step(ctx);
  });
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_NE(lines_[0].find("9 variables: 'v0', 'v1', 'v2', 'v3' and 5 more"), std::string::npos) << lines_[0];
}

TEST_P(AbsentGradients, OfAnEmptyPartAreNoNews) {
  const auto model = strategy_->make_module([] { return nn::Linear(24, 7); });
  const auto optimizer = strategy_->make_optimizer(model, torch::optim::SGDOptions(0.1));
  const auto data = strategy_->distribute(testing::make_data("mlp", 8), {.global_batch = 2});
  for (const auto& batch : data.epoch(0)) {
    strategy_->run(batch, [&](ReplicaContext& ctx, const Batch& part) {
      ctx.scale_loss(nn::functional::cross_entropy(model(ctx)->forward(part.input), part.target)).backward();
      optimizer.step(ctx);
    });
  }
  EXPECT_TRUE(lines_.empty()) << lines_.front();
}

/// Two layers; the first is frozen where `frozen`.
nn::Sequential make_layers(bool frozen) {
  nn::Linear first(2, 3);
  if (frozen) {
    for (Tensor& parameter : first->parameters()) parameter.requires_grad_(false);
  }
  return nn::Sequential(first, nn::Linear(3, 1));
}

void set_frozen(nn::Sequential& model, bool frozen) {
  for (Tensor& parameter : model[0]->parameters()) parameter.requires_grad_(!frozen);
}

TEST_P(AbsentGradients, OfFrozenParametersAreNoNewsAndLeaveThemUntouched) {
  const auto model = strategy_->make_module([] { return make_layers(true); });
  const auto optimizer = strategy_->make_optimizer(model, torch::optim::AdamWOptions(0.1));
  const auto before = model.state();
  strategy_->run([&](ReplicaContext& ctx) {
    model(ctx)->forward(torch::ones({4, 2})).sum().backward();
    optimizer.step(ctx);
  });
  const auto after = model.state();
  for (const char* name : {"0.weight", "0.bias"}) EXPECT_TRUE(torch::equal(after.at(name), before.at(name))) << name;
  for (const char* name : {"1.weight", "1.bias"}) EXPECT_FALSE(torch::equal(after.at(name), before.at(name))) << name;
  EXPECT_EQ(optimizer.state().at("model.0.weight/step").item<int64_t>(), 0);
  EXPECT_TRUE(lines_.empty()) << lines_.front();
}

TEST_P(AbsentGradients, OfParametersFrozenForAWhileLeaveThemAsTheyWere) {
  const auto model = strategy_->make_module([] { return make_layers(false); });
  const auto optimizer = strategy_->make_optimizer(model, torch::optim::AdamWOptions(0.1));
  const auto step = [&](bool frozen) {
    strategy_->run([&](ReplicaContext& ctx) {
      set_frozen(model(ctx), frozen);
      model(ctx)->forward(torch::ones({4, 2})).sum().backward();
      optimizer.step(ctx);
    });
  };
  step(false);
  const auto weights = model.state();
  const auto slots = optimizer.state();
  step(true);
  step(true);
  for (const char* name : {"0.weight", "0.bias"}) EXPECT_TRUE(torch::equal(model.state().at(name), weights.at(name)));
  for (const char* name : {"model.0.weight/exp_avg", "model.0.bias/exp_avg_sq", "model.0.weight/step"}) {
    EXPECT_TRUE(torch::equal(optimizer.state().at(name), slots.at(name))) << name;
  }
  step(false);
  EXPECT_FALSE(torch::equal(model.state().at("0.weight"), weights.at("0.weight")));
  EXPECT_EQ(optimizer.state().at("model.0.weight/step").item<int64_t>(), 2);
  EXPECT_EQ(optimizer.state().at("model.1.weight/step").item<int64_t>(), 4);
  EXPECT_TRUE(lines_.empty()) << lines_.front();
}

TEST_P(AbsentGradients, OfAParameterFrozenOnOneReplicaAloneAreAnError) {
  if (replicas() == 1) GTEST_SKIP() << "one replica cannot disagree";
  const auto model = strategy_->make_module([] { return make_layers(false); });
  const auto optimizer = strategy_->make_optimizer(model, torch::optim::SGDOptions(0.1));
  const auto before = model.state();
  const auto step = [&](ReplicaContext& ctx) {
    if (ctx.replica_id() == 1) model(ctx)[0]->parameters()[1].requires_grad_(false);
    model(ctx)->forward(torch::ones({4, 2})).sum().backward();
    optimizer.step(ctx);
  };
  const auto error = testing::error_from<ReplicaError>([&] { strategy_->run(step); });
  testing::expect_error<UsageError>([&] { std::rethrow_if_nested(error); }, "LS-FROZEN-UNLIKE",
                                    {"variable 'model.0.bias'", "frozen on replica 1", "replica 0"});
  expect_equal(model.state(), before);
}

INSTANTIATE_TEST_SUITE_P(Strategies, AbsentGradients, ::testing::ValuesIn(testing::strategy_cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace lockstep
