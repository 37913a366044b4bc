// The matrix of docs/variables.md, cell by cell, on every strategy: synchronization x aggregation x where x operation.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <functional>
#include <numeric>

#include "tests/support/programs.h"
#include "tests/support/strategies.h"

namespace lockstep {
namespace {

using testing::message_from;
using testing::nested_message_from;
using torch::Tensor;
using enum VariableSynchronization;
using enum VariableAggregation;

enum class Where { kStep, kOutside, kUpdate };
enum class Operation { kRead, kAssign, kAdd, kSub };

/// What a cell does, in terms of the components before and of what each replica gave (outside of steps and in an
/// update: the one given value).
enum class Outcome {
  kRefused,     // a UsageError that says what to do; nothing changes
  kEach,        // read: the component; write: each component, by its replica's value
  kSum,         // read: of all components; write: every component, by the sum of the values
  kMean,        // the same with the mean
  kFirst,       // the same with replica 0's
  kAtReplica0,  // write: replica 0's component; assign() clears the others
};

struct Row {
  VariableSynchronization synchronization;
  VariableAggregation aggregation;
  Where where;
  std::array<Outcome, 4> outcomes;  // read, assign, assign_add, assign_sub
};

constexpr Outcome kRefused = Outcome::kRefused;
constexpr Outcome kEach = Outcome::kEach;
constexpr Outcome kAll = Outcome::kSum;
constexpr Outcome kAverage = Outcome::kMean;
constexpr Outcome kFirst = Outcome::kFirst;
constexpr Outcome kReplica0 = Outcome::kAtReplica0;

constexpr std::array<Row, 24> kMatrix{{
    // An on-write variable's components are equal: what is read of each is the value.
    {kOnWrite, kNone, Where::kStep, {kEach, kRefused, kRefused, kRefused}},
    {kOnWrite, kSum, Where::kStep, {kEach, kAll, kAll, kAll}},
    {kOnWrite, kMean, Where::kStep, {kEach, kAverage, kAverage, kAverage}},
    {kOnWrite, kOnlyFirstReplica, Where::kStep, {kEach, kFirst, kFirst, kFirst}},
    {kOnWrite, kNone, Where::kOutside, {kEach, kEach, kEach, kEach}},
    {kOnWrite, kSum, Where::kOutside, {kEach, kEach, kEach, kEach}},
    {kOnWrite, kMean, Where::kOutside, {kEach, kEach, kEach, kEach}},
    {kOnWrite, kOnlyFirstReplica, Where::kOutside, {kEach, kEach, kEach, kEach}},
    {kOnWrite, kNone, Where::kUpdate, {kEach, kEach, kEach, kEach}},
    {kOnWrite, kSum, Where::kUpdate, {kEach, kEach, kEach, kEach}},
    {kOnWrite, kMean, Where::kUpdate, {kEach, kEach, kEach, kEach}},
    {kOnWrite, kOnlyFirstReplica, Where::kUpdate, {kEach, kEach, kEach, kEach}},

    {kOnRead, kNone, Where::kStep, {kEach, kEach, kEach, kEach}},
    {kOnRead, kSum, Where::kStep, {kEach, kEach, kEach, kEach}},
    {kOnRead, kMean, Where::kStep, {kEach, kEach, kEach, kEach}},
    {kOnRead, kOnlyFirstReplica, Where::kStep, {kEach, kEach, kEach, kEach}},
    {kOnRead, kNone, Where::kOutside, {kRefused, kEach, kEach, kEach}},
    {kOnRead, kSum, Where::kOutside, {kAll, kReplica0, kReplica0, kReplica0}},
    {kOnRead, kMean, Where::kOutside, {kAverage, kEach, kEach, kEach}},
    {kOnRead, kOnlyFirstReplica, Where::kOutside, {kFirst, kEach, kEach, kEach}},
    {kOnRead, kNone, Where::kUpdate, {kEach, kEach, kEach, kEach}},
    {kOnRead, kSum, Where::kUpdate, {kEach, kEach, kEach, kEach}},
    {kOnRead, kMean, Where::kUpdate, {kEach, kEach, kEach, kEach}},
    {kOnRead, kOnlyFirstReplica, Where::kUpdate, {kEach, kEach, kEach, kEach}},
}};

using Numbers = std::vector<double>;  // one for each replica

double one_of(Outcome outcome, const Numbers& all) {
  const double sum = std::accumulate(all.begin(), all.end(), 0.0);
  if (outcome == Outcome::kSum) return sum;
  if (outcome == Outcome::kMean) return sum / static_cast<double>(all.size());
  return all.front();
}

double after(Operation operation, double before, double value) {
  if (operation == Operation::kAdd) return before + value;
  if (operation == Operation::kSub) return before - value;
  return value;
}

Numbers components_after(Outcome outcome, Operation operation, const Numbers& before, const Numbers& given) {
  Numbers result = before;
  for (std::size_t r = 0; r < before.size(); ++r) {
    switch (outcome) {
      case Outcome::kRefused: break;
      case Outcome::kEach: result[r] = after(operation, before[r], given[r]); break;
      case Outcome::kAtReplica0:
        if (r == 0) result[r] = after(operation, before[r], given[r]);
        if (r > 0 && operation == Operation::kAssign) result[r] = 0;
        break;
      default: result[r] = after(operation, before[r], one_of(outcome, given));
    }
  }
  return result;
}

std::string text_of(const Row& row, int operation, at::ScalarType type) {
  constexpr std::array<const char*, 4> kAggregations{"none", "sum", "mean", "only-first-replica"};
  constexpr std::array<const char*, 3> kWhere{"in a step", "outside", "in an update"};
  constexpr std::array<const char*, 4> kOperations{"read", "assign", "assign_add", "assign_sub"};
  return std::string(row.synchronization == kOnWrite ? "on-write " : "on-read ") +
         kAggregations[static_cast<std::size_t>(row.aggregation)] + ", " + kWhere[static_cast<std::size_t>(row.where)] +
         ": " + kOperations[static_cast<std::size_t>(operation)] + " of " + c10::toString(type);
}

class Matrix : public ::testing::TestWithParam<testing::StrategyCase> {
 protected:
  Matrix() : strategy_(GetParam().make()) {}

  Tensor filled(double value, at::ScalarType type) const { return torch::full({3}, value, type); }
  Numbers numbers(double first, double step) const {
    Numbers result;
    for (int64_t r = 0; r < strategy_->num_replicas(); ++r) result.push_back(first + step * static_cast<double>(r));
    return result;
  }
  Numbers components(const Variable& variable) const {
    Numbers result;
    for (const Tensor& component : variable.components()) {
      EXPECT_TRUE((component == component[0]).all().item<bool>());
      EXPECT_EQ(component.scalar_type(), variable.dtype());
      result.push_back(component[0].item<double>());
    }
    return result;
  }
  void write(const Variable& variable, Operation operation, const Tensor& value) const {
    if (operation == Operation::kAssign) variable.assign(value);
    if (operation == Operation::kAdd) variable.assign_add(value);
    if (operation == Operation::kSub) variable.assign_sub(value);
  }
  void write(const Variable& variable, Operation operation, const ReplicaContext& ctx, const Tensor& value) const {
    if (operation == Operation::kAssign) variable.assign(ctx, value);
    if (operation == Operation::kAdd) variable.assign_add(ctx, value);
    if (operation == Operation::kSub) variable.assign_sub(ctx, value);
  }

  void check_read(const Variable& variable, const Row& row, const Numbers& before) {
    const Outcome outcome = row.outcomes[0];
    if (row.where == Where::kStep) {
      const auto seen =
          strategy_->run([&](ReplicaContext& ctx) { return variable.value(ctx)[0].detach().item<double>(); });
      EXPECT_EQ(strategy_->local_results(seen), before);
    } else if (row.where == Where::kUpdate) {
      Numbers seen;
      strategy_->update(variable, [&](Tensor& value) {
        value.add_(1);
        seen.push_back(variable.read()[0].item<double>() - 1);  // what the function has made of it so far
      });
      if (row.synchronization == kOnWrite) {
        for (const double one : seen) EXPECT_EQ(one, before[0]);
      } else {
        EXPECT_EQ(seen, before);
      }
    } else if (outcome == Outcome::kRefused) {
      EXPECT_NE(message_from<UsageError>([&] { variable.read(); }).find("components()"), std::string::npos);
    } else {
      const Tensor value = variable.read();
      EXPECT_EQ(value.scalar_type(), variable.dtype());
      EXPECT_TRUE(torch::equal(value, filled(one_of(outcome, before), variable.dtype()))) << value;
    }
  }

  void check_write(const Variable& variable, const Row& row, Operation operation, const Numbers& before) {
    const Outcome outcome = row.outcomes[static_cast<std::size_t>(operation)];
    const bool in_step = row.where == Where::kStep;
    const Numbers given = in_step ? numbers(1, 1) : numbers(3, 0);
    if (in_step) {
      const auto step = [&](ReplicaContext& ctx) {
        write(variable, operation, ctx, filled(given[static_cast<std::size_t>(ctx.replica_id())], variable.dtype()));
      };
      if (outcome == Outcome::kRefused) {
        const auto text = nested_message_from<UsageError>([&] { strategy_->run(step); });
        EXPECT_NE(text.find(".aggregation = kSum"), std::string::npos) << text;
      } else {
        strategy_->run(step);
      }
    } else if (row.where == Where::kOutside) {
      write(variable, operation, filled(3, variable.dtype()));
    } else {
      strategy_->update(variable, [&](Tensor&) { write(variable, operation, filled(3, variable.dtype())); });
    }
    EXPECT_EQ(components(variable), components_after(outcome, operation, before, given));
  }

  std::unique_ptr<Strategy> strategy_;
};

TEST_P(Matrix, EveryCellDoesWhatTheTableSays) {
  for (const at::ScalarType type : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kLong, torch::kInt}) {
    for (const Row& row : kMatrix) {
      if (row.aggregation == kMean && !at::isFloatingType(type)) continue;  // refused at creation
      for (int operation = 0; operation < 4; ++operation) {
        SCOPED_TRACE(text_of(row, operation, type));
        const Variable variable = strategy_->make_variable(
            filled(5, type), {.synchronization = row.synchronization, .aggregation = row.aggregation});
        if (row.synchronization == kOnRead) {
          variable.assign(strategy_->per_replica([&](ReplicaId r) { return filled(10 + r.value(), type); }));
        }
        const Numbers before = row.synchronization == kOnRead ? numbers(10, 1) : numbers(5, 0);
        EXPECT_EQ(components(variable), before);
        if (operation == 0) {
          check_read(variable, row, before);
        } else {
          check_write(variable, row, static_cast<Operation>(operation), before);
        }
      }
    }
  }
}

TEST_P(Matrix, HasEveryCellOnce) {
  std::set<std::tuple<VariableSynchronization, VariableAggregation, Where>> seen;
  for (const Row& row : kMatrix) EXPECT_TRUE(seen.insert({row.synchronization, row.aggregation, row.where}).second);
  EXPECT_EQ(seen.size(), 2u * 4 * 3);
}

// A step's merge function is outside of replicas: there the cells of "outside" hold.
TEST_P(Matrix, AMergeFunctionWritesLikeTheOutside) {
  const Variable mirrored = strategy_->make_variable(filled(1, torch::kFloat));
  const Variable sum =
      strategy_->make_variable(filled(1, torch::kFloat), {.synchronization = kOnRead, .aggregation = kSum});
  strategy_->run([&](ReplicaContext& ctx) {
    ctx.merge_call([&](Strategy&) {
      mirrored.assign_add(filled(2, torch::kFloat));
      sum.assign(filled(4, torch::kFloat));
      EXPECT_TRUE(torch::equal(mirrored.read(), filled(3, torch::kFloat)));
      EXPECT_TRUE(torch::equal(sum.read(), filled(4, torch::kFloat)));
    });
    EXPECT_EQ(mirrored.value(ctx)[0].detach().item<float>(), 3);
    EXPECT_EQ(sum.value(ctx)[0].item<float>(), ctx.replica_id() == 0 ? 4 : 0);
  });
}

TEST_P(Matrix, PerReplicaValuesGoToTheirComponentsOrMustBeEqual) {
  const auto different = strategy_->per_replica([&](ReplicaId r) { return filled(1 + r.value(), torch::kFloat); });
  const auto equal = strategy_->per_replica([&](ReplicaId) { return filled(2, torch::kFloat); });
  for (const VariableAggregation aggregation : {kNone, kSum, kMean, kOnlyFirstReplica}) {
    const Variable own =
        strategy_->make_variable(filled(7, torch::kFloat), {.synchronization = kOnRead, .aggregation = aggregation});
    own.assign(different);
    EXPECT_EQ(components(own), numbers(1, 1));
    own.assign_add(different);
    EXPECT_EQ(components(own), numbers(2, 2));
    own.assign_sub(equal);
    EXPECT_EQ(components(own), numbers(0, 2));

    const Variable all = strategy_->make_variable(filled(7, torch::kFloat), {.aggregation = aggregation});
    all.assign(equal);
    all.assign_add(equal);
    EXPECT_EQ(components(all), numbers(4, 0));
    if (strategy_->num_replicas() == 1) continue;
    for (const auto& write : std::vector<std::function<void()>>{
             [&] { all.assign(different); }, [&] { all.assign_add(different); }, [&] { all.assign_sub(different); }}) {
      const auto text = message_from<DivergenceError>(write);
      EXPECT_NE(text.find("replicas 0 and 1"), std::string::npos) << text;
      EXPECT_NE(text.find("update_from"), std::string::npos) << text;
      EXPECT_EQ(components(all), numbers(4, 0));
    }
  }
  const PerReplica<Tensor> too_many(std::vector<Tensor>(static_cast<std::size_t>(strategy_->num_replicas() + 1)));
  const Variable all = strategy_->make_variable(filled(7, torch::kFloat));
  message_from<UsageError>([&] { all.assign(too_many); });
}

// Initially, and by assign: the bits that were given, for any number of replicas; also -0, NaN and what no float holds.
TEST_P(Matrix, AnOnReadSumReadsBackTheBitsThatItWasGiven) {
  const float third = 1.0f / 3;
  const Tensor floats =
      torch::tensor({-0.0f, 0.0f, third, -third, INFINITY, std::numeric_limits<float>::denorm_min(), -1e38f, NAN});
  const Tensor integers = torch::tensor({int64_t{7}, int64_t{-1}, (int64_t{1} << 53) + 1,
                                         std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()});
  for (const Tensor& given : {floats, floats.to(torch::kDouble), floats.to(torch::kHalf), integers,
                              integers.to(torch::kInt), torch::complex(floats, floats.flip(0))}) {
    const VariableOptions options{.synchronization = kOnRead, .aggregation = kSum};
    const Variable fresh = strategy_->make_variable(given, options);
    const Variable assigned = strategy_->make_variable(torch::ones_like(given), options);
    assigned.assign(given);
    for (const Variable& variable : {fresh, assigned}) {
      const Tensor read = variable.read();
      EXPECT_EQ(std::memcmp(read.data_ptr(), given.data_ptr(), given.nbytes()), 0) << given << read;
      for (int64_t r = 1; r < strategy_->num_replicas(); ++r) {
        EXPECT_TRUE((variable.components()[r] == 0).all().item<bool>());
      }
    }
  }
}

// Equal components are that value; others are added in float64 and rounded once.
TEST_P(Matrix, AnOnReadMeanOfEqualComponentsHasTheirBits) {
  const Variable mean = strategy_->make_variable(torch::tensor({0.1f, -0.0f, NAN, 3e38f}),
                                                 {.synchronization = kOnRead, .aggregation = kMean});
  const Tensor value = mean.components()[0];
  EXPECT_EQ(std::memcmp(mean.read().data_ptr(), value.data_ptr(), value.nbytes()), 0);
  const Variable spread =
      strategy_->make_variable(torch::zeros({1}), {.synchronization = kOnRead, .aggregation = kMean});
  spread.assign(strategy_->per_replica([](ReplicaId r) { return torch::full({1}, r == 0 ? 16777216.0f : 1.0f); }));
  const auto n = static_cast<double>(strategy_->num_replicas());
  EXPECT_EQ(spread.read().item<float>(), static_cast<float>((16777216.0 + (n - 1)) / n));
}

TEST_P(Matrix, AValueOfAnotherDtypeIsConvertedUnlessThatLosesAFraction) {
  const Variable whole = strategy_->make_variable(filled(1, torch::kLong), {.aggregation = kSum});
  whole.assign(filled(4, torch::kFloat));
  EXPECT_TRUE(torch::equal(whole.read(), filled(4, torch::kLong)));
  for (const auto& write : std::vector<std::function<void()>>{
           [&] { whole.assign(filled(1.5, torch::kFloat)); }, [&] { whole.assign_add(filled(NAN, torch::kDouble)); },
           [&] { whole.assign(torch::complex(torch::ones({3}), torch::ones({3}))); }}) {
    const auto text = message_from<UsageError>(write);
    EXPECT_NE(text.find("that Long cannot hold"), std::string::npos) << text;
  }
  nested_message_from<UsageError>(
      [&] { strategy_->run([&](ReplicaContext& ctx) { whole.assign(ctx, filled(0.5, torch::kFloat)); }); });
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
  for (const auto& [bad, why] :
       std::vector<std::pair<Tensor, std::string>>{{Tensor(), "undefined"},
                                                   {torch::ones({2}), "[2] instead of [3]"},
                                                   {filled(1, torch::kFloat).to_sparse(), "sparse"}}) {
    for (const std::string& text :
         {message_from<UsageError>([&] { variable.assign_sub(bad); }), nested_message_from<UsageError>([&] {
            strategy_->run([&](ReplicaContext& ctx) { variable.assign_sub(ctx, bad); });
          })}) {
      for (const std::string& part : {std::string("assign_sub of variable 'mine'"), why}) {
        EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
      }
    }
  }
  const Variable flag = strategy_->make_variable(torch::ones({2}, torch::kBool));
  flag.assign(torch::zeros({2}, torch::kBool));
  EXPECT_NE(message_from<UsageError>([&] { flag.assign_sub(torch::ones({2}, torch::kBool)); }).find("of bool"),
            std::string::npos);
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
