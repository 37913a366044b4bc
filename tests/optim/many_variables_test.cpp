// More small variables than are fetched at a time: each has its own gradient, update and version.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/strategies.h"

namespace lockstep {
namespace {

using torch::Tensor;

constexpr int64_t kVariables = 203;

class ManyVariables : public ::testing::TestWithParam<testing::StrategyCase> {
 protected:
  ManyVariables() {
    for (int64_t i = 0; i < kVariables; ++i) {
      variables_.push_back(strategy_->make_variable(torch::full({i % 7 + 1}, static_cast<double>(i)),
                                                    {.name = "v" + std::to_string(i)}));
    }
  }
  /// Replica r's gradient of variable i is i + r + 1, but for every ninth variable, which has none.
  void set_gradients(ReplicaContext& ctx) const {
    for (int64_t i = 0; i < kVariables; ++i) {
      if (i % 9 == 8) continue;
      const Tensor value = variables_[static_cast<std::size_t>(i)].value(ctx);
      value.mutable_grad() = torch::full_like(value, static_cast<double>(i + ctx.replica_id().value() + 1)).detach();
    }
  }

  const std::unique_ptr<Strategy> strategy_ = GetParam().make();
  std::vector<Variable> variables_;
};

TEST_P(ManyVariables, AreEachUpdatedByTheSumOfTheirOwnGradients) {
  const auto optimizer = strategy_->make_optimizer(variables_, torch::optim::SGDOptions(1));
  const int64_t replicas = strategy_->num_replicas();
  for (int step = 0; step < 2; ++step) {
    strategy_->run([&](ReplicaContext& ctx) {
      set_gradients(ctx);
      optimizer.step(ctx);
      for (const Variable& variable : variables_) EXPECT_FALSE(variable.value(ctx).grad().defined());
    });
  }
  for (int64_t i = 0; i < kVariables; ++i) {
    const int64_t sum = i % 9 == 8 ? 0 : replicas * (i + 1) + replicas * (replicas - 1) / 2;
    const Tensor value = variables_[static_cast<std::size_t>(i)].read();
    EXPECT_TRUE(torch::equal(value, torch::full_like(value, static_cast<double>(i - 2 * sum)))) << i << ": " << value;
  }
}

TEST_P(ManyVariables, AreEachLookedAtForForeignWrites) {
  const auto optimizer = strategy_->make_optimizer(variables_, torch::optim::SGDOptions(1));
  const int64_t bad = strategy_->num_replicas() - 1;
  const auto step = [&](ReplicaContext& ctx) {
    set_gradients(ctx);
    const torch::NoGradGuard no_grad;
    if (ctx.replica_id() == bad) Tensor(variables_[101].value(ctx)).add_(1);
    optimizer.step(ctx);
  };
  testing::expect_step_error<DivergenceError>([&] { strategy_->run(step); }, "LS-FOREIGN-WRITE", {"variable 'v101'"});
}

INSTANTIATE_TEST_SUITE_P(Strategies, ManyVariables, ::testing::ValuesIn(testing::strategy_cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace lockstep
