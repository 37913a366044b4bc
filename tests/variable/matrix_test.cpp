// Reads and writes of every kind of variable on every strategy: the matrix of docs/variables.md, whose cells stand in
// lockstep/testing/conformance/conformance_matrix.cpp, and what may be given to a write.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstring>
#include <functional>

#include "lockstep/testing/conformance/conformance_checks.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/strategies.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::expect_step_error;
using torch::Tensor;
using enum VariableAggregation;

class Matrix : public ::testing::TestWithParam<testing::StrategyCase> {
 protected:
  Matrix() : strategy_(GetParam().make()) {}
  Tensor filled(double value, at::ScalarType type) const { return torch::full({3}, value, type); }

  std::unique_ptr<Strategy> strategy_;
};

TEST_P(Matrix, HoldsInEveryCell) {
  for (const internal::StrategyCheck& check : internal::matrix_checks()) {
    SCOPED_TRACE(check.name);
    EXPECT_NO_THROW(check.run(*GetParam().make()));
  }
}

// As of real numbers, which the suite has: LibTorch's own complex addition loses the sign of zeros.
TEST_P(Matrix, AnOnReadSumOfComplexNumbersReadsBackTheBitsThatItWasGiven) {
  const Tensor real = torch::tensor({-0.0f, 0.0f, 1.0f / 3, INFINITY, NAN});
  const Tensor given = torch::complex(real, real.flip(0));
  const Variable sum =
      strategy_->make_variable(given, {.synchronization = VariableSynchronization::kOnRead, .aggregation = kSum});
  EXPECT_EQ(std::memcmp(sum.read().data_ptr(), given.data_ptr(), given.nbytes()), 0) << given << sum.read();
  sum.assign(given);
  EXPECT_EQ(std::memcmp(sum.read().data_ptr(), given.data_ptr(), given.nbytes()), 0) << given << sum.read();
}

// First of those that convert complex numbers: LibTorch warns once in a process.
TEST_P(Matrix, AComplexValueWithoutImaginaryPartIsARealOneAndNobodyIsWarned) {
  const Variable real = strategy_->make_variable(filled(1, torch::kFloat), {.aggregation = kSum});
  ::testing::internal::CaptureStderr();
  real.assign(torch::complex(filled(2, torch::kFloat), torch::zeros({3})));
  EXPECT_TRUE(torch::equal(real.read(), filled(2, torch::kFloat)));
  EXPECT_THROW(real.assign(torch::complex(filled(3, torch::kFloat), filled(1, torch::kFloat))), UsageError);
  EXPECT_TRUE(torch::equal(real.read(), filled(2, torch::kFloat)));
  // In a step too, where its real part is a view that lies apart in memory.
  strategy_->run(
      [&](ReplicaContext& ctx) { real.assign(ctx, torch::complex(filled(2, torch::kFloat), torch::zeros({3}))); });
  EXPECT_TRUE(torch::equal(real.read(), filled(2.0 * static_cast<double>(strategy_->num_replicas()), torch::kFloat)));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST_P(Matrix, AValueOfAnotherDtypeIsConvertedUnlessThatLosesAFraction) {
  const Variable whole = strategy_->make_variable(filled(1, torch::kLong), {.name = "whole", .aggregation = kSum});
  whole.assign(filled(4, torch::kFloat));
  EXPECT_TRUE(torch::equal(whole.read(), filled(4, torch::kLong)));
  expect_error<UsageError>([&] { whole.assign(filled(1.5, torch::kFloat)); }, "LS-DTYPE",
                           {"assign", "variable 'whole'", "Float values", "Long"});
  expect_error<UsageError>([&] { whole.assign_add(filled(NAN, torch::kDouble)); }, "LS-DTYPE",
                           {"assign_add", "variable 'whole'", "Double values", "Long"});
  expect_error<UsageError>([&] { whole.assign(torch::complex(torch::ones({3}), torch::ones({3}))); }, "LS-DTYPE",
                           {"assign", "variable 'whole'", "ComplexFloat values", "Long"});
  const auto assign = [&](ReplicaContext& ctx) { whole.assign(ctx, filled(0.5, torch::kFloat)); };
  expect_step_error<UsageError>([&] { strategy_->run(assign); }, "LS-DTYPE",
                                {"assign", "variable 'whole'", "Float values", "Long"});
  EXPECT_TRUE(torch::equal(whole.read(), filled(4, torch::kLong)));
  // In a step each replica's value is converted, then aggregated: dtypes need not agree.
  strategy_->run([&](ReplicaContext& ctx) {
    whole.assign(ctx, filled(2, ctx.replica_id() % 2 == 0 ? torch::kBool : torch::kFloat));
  });
  const int64_t even = (strategy_->num_replicas() + 1) / 2;
  EXPECT_EQ(whole.read()[0].item<int64_t>(), even + 2 * (strategy_->num_replicas() - even));
}

TEST_P(Matrix, WhatCannotBeAValueIsNamedWithVariableAndCall) {
  const Variable variable = strategy_->make_variable(filled(1, torch::kFloat), {.name = "mine", .aggregation = kSum});
  const auto expect_refused = [&](const Tensor& bad, std::string_view code, std::string_view value,
                                  const testing::Where& where = testing::Where::current()) {
    expect_error<UsageError>([&] { variable.assign_sub(bad); }, code, {"assign_sub", "variable 'mine'", value}, where);
    expect_step_error<UsageError>([&] { strategy_->run([&](ReplicaContext& ctx) { variable.assign_sub(ctx, bad); }); },
                                  code, {"assign_sub", "variable 'mine'", value}, where);
  };
  expect_refused(Tensor(), "LS-NOT-DENSE", "undefined");
  expect_refused(torch::ones({2}), "LS-SHAPE", "shape [2]");
  expect_refused(filled(1, torch::kFloat).to_sparse(), "LS-NOT-DENSE", "sparse");
  const Variable flag = strategy_->make_variable(torch::ones({2}, torch::kBool), {.name = "flag"});
  flag.assign(torch::zeros({2}, torch::kBool));
  expect_error<UsageError>([&] { flag.assign_sub(torch::ones({2}, torch::kBool)); }, "LS-DTYPE",
                           {"assign_sub", "variable 'flag'", "Bool"});
}

TEST_P(Matrix, AVariableKeepsNothingOfTheTensorsThatItWasGiven) {
  Tensor given = filled(1, torch::kFloat).requires_grad_();
  const Variable variable = strategy_->make_variable(given, {.aggregation = kOnlyFirstReplica});
  variable.assign(given);
  given.data().fill_(9);
  EXPECT_TRUE(torch::equal(variable.read(), filled(1, torch::kFloat)));
  EXPECT_FALSE(variable.read().requires_grad());
  Tensor read = variable.read();
  read.fill_(8);
  EXPECT_TRUE(torch::equal(variable.read(), filled(1, torch::kFloat)));
}

INSTANTIATE_TEST_SUITE_P(Strategies, Matrix, ::testing::ValuesIn(testing::strategy_cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace lockstep
