// The conformance checks of the matrix of docs/variables.md, cell by cell: synchronization x aggregation x where x
// operation.
#include <ATen/ATen.h>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "lockstep/testing/conformance/conformance_checks.h"

namespace lockstep::internal::inline testing {

namespace {

using enum VariableSynchronization;
using enum VariableAggregation;

enum class Where { kStep, kOutside, kUpdate };
enum class Operation { kRead, kAssign, kAdd, kSub };

/// What a cell does. Its input are the components before, and the value that each replica gave (outside of steps and in
/// an update: the one given value).
enum class Outcome {
  kRefused,     // a UsageError that says what to do; nothing changes
  kEach,        // read: the component; write: each component, by its replica's value
  kSum,         // read: of all components; write: every component, by the sum of the values
  kMean,        // as kSum, with the mean
  kFirst,       // as kSum, with replica 0's
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
    // An on-write variable's components are equal, so that reading any of them gives the value.
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

constexpr bool has_a_row_twice() {
  for (std::size_t i = 0; i < kMatrix.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const bool same = kMatrix[i].synchronization == kMatrix[j].synchronization &&
                        kMatrix[i].aggregation == kMatrix[j].aggregation && kMatrix[i].where == kMatrix[j].where;
      if (same) return true;
    }
  }
  return false;
}
static_assert(kMatrix.size() == 2 * 4 * 3 && !has_a_row_twice(), "every cell stands in the table once");

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

std::string text_of(const Row& row, Operation operation, at::ScalarType type) {
  constexpr std::array<const char*, 4> kAggregations{"none", "sum", "mean", "only-first-replica"};
  constexpr std::array<const char*, 3> kWhere{"in a step", "outside of steps", "in an update"};
  constexpr std::array<const char*, 4> kOperations{"read", "assign", "assign_add", "assign_sub"};
  return fmt::format("{} of a variable of {}, {}, aggregation {}, {}", kOperations[static_cast<std::size_t>(operation)],
                     c10::toString(type), row.synchronization == kOnWrite ? "on-write" : "on-read",
                     kAggregations[static_cast<std::size_t>(row.aggregation)],
                     kWhere[static_cast<std::size_t>(row.where)]);
}

at::Tensor filled(double value, at::ScalarType type = at::kFloat) { return at::full({3}, value, type); }

Numbers numbers(const Strategy& strategy, double first, double step) {
  Numbers result;
  for (int64_t r = 0; r < strategy.num_replicas(); ++r) result.push_back(first + step * static_cast<double>(r));
  return result;
}

/// Those of the replicas of this worker.
Numbers local(Strategy& strategy, const Numbers& all) {
  Numbers own;
  for (const int64_t r : local_ids(strategy)) own.push_back(all[static_cast<std::size_t>(r)]);
  return own;
}

/// `expected` has a number for each replica of all workers.
void expect_components(Strategy& strategy, const Variable& variable, const Numbers& expected) {
  Numbers found;
  for (const at::Tensor& component : variable.components()) {
    expect_tensor("a component of one number", component, filled(component[0].item<double>(), variable.dtype()));
    found.push_back(component[0].item<double>());
  }
  expect_equal("what the components are", found, local(strategy, expected));
}

/// The three writes, outside of steps or with a context before the value.
template <class... Given>
void write(const Variable& variable, Operation operation, const Given&... given) {
  if (operation == Operation::kAssign) variable.assign(given...);
  if (operation == Operation::kAdd) variable.assign_add(given...);
  if (operation == Operation::kSub) variable.assign_sub(given...);
}

void check_read(Strategy& strategy, const Variable& variable, const Row& row, const Numbers& before) {
  const Outcome outcome = row.outcomes[0];
  if (row.where == Where::kStep) {
    const auto seen = strategy.run([&](ReplicaContext& ctx) { return variable.value(ctx)[0].detach().item<double>(); });
    expect_equal("what the replicas read", strategy.local_results(seen), local(strategy, before));
  } else if (row.where == Where::kUpdate) {
    Numbers seen;
    strategy.update(variable, [&](at::Tensor& value) {
      value.add_(1);
      seen.push_back(variable.read()[0].item<double>() - 1);  // a read sees what the function has written so far
    });
    const Numbers expected = row.synchronization == kOnRead ? local(strategy, before) : Numbers(seen.size(), before[0]);
    expect_equal("what the update reads, copy by copy", seen, expected);
  } else if (outcome == Outcome::kRefused) {
    expect_usage_error("the read", [&] { variable.read(); }, {"components()"});
  } else {
    expect_tensor("the value read", variable.read(), filled(one_of(outcome, before), variable.dtype()));
  }
}

void check_write(Strategy& strategy, const Variable& variable, const Row& row, Operation operation,
                 const Numbers& before) {
  const Outcome outcome = row.outcomes[static_cast<std::size_t>(operation)];
  const bool in_step = row.where == Where::kStep;
  const Numbers given = in_step ? numbers(strategy, 1, 1) : numbers(strategy, 3, 0);
  if (in_step) {
    const auto step = [&](ReplicaContext& ctx) {
      write(variable, operation, ctx, filled(given[static_cast<std::size_t>(ctx.replica_id())], variable.dtype()));
    };
    if (outcome == Outcome::kRefused) {
      expect_usage_error_in_step(strategy, "the write", step, {variable.name(), ".aggregation = kSum"});
    } else {
      strategy.run(step);
    }
  } else if (row.where == Where::kOutside) {
    write(variable, operation, filled(3, variable.dtype()));
  } else {
    strategy.update(variable, [&](at::Tensor&) { write(variable, operation, filled(3, variable.dtype())); });
  }
  expect_components(strategy, variable, components_after(outcome, operation, before, given));
}

void check_cell(Strategy& strategy, const Row& row, Operation operation, at::ScalarType type) {
  const bool on_read = row.synchronization == kOnRead;
  const Variable variable =
      strategy.make_variable(filled(5, type), {.synchronization = row.synchronization, .aggregation = row.aggregation});
  if (on_read) variable.assign(strategy.per_replica([&](ReplicaId r) { return filled(10 + r.value(), type); }));
  const Numbers before = on_read ? numbers(strategy, 10, 1) : numbers(strategy, 5, 0);
  expect_components(strategy, variable, before);
  if (operation == Operation::kRead) {
    check_read(strategy, variable, row, before);
  } else {
    check_write(strategy, variable, row, operation, before);
  }
}

void every_cell(Strategy& strategy) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong, at::kInt}) {
    if (type == at::kBFloat16 && strategy.num_replicas() > 8) continue;  // it cannot represent the sums
    for (const Row& row : kMatrix) {
      if (row.aggregation == kMean && !at::isFloatingType(type)) continue;  // refused at creation
      for (const Operation operation : {Operation::kRead, Operation::kAssign, Operation::kAdd, Operation::kSub}) {
        const auto found = thrown_by([&] { check_cell(strategy, row, operation, type); });
        if (found) throw Finding(fmt::format("{}: {}", text_of(row, operation, type), message_of(found)));
      }
    }
  }
}

// A merge function runs outside of replicas, so the cells of "outside" hold there.
void merge_function(Strategy& strategy) {
  const Variable mirrored = strategy.make_variable(filled(1));
  const Variable sum = strategy.make_variable(filled(1), {.synchronization = kOnRead, .aggregation = kSum});
  const auto seen = strategy.run([&](ReplicaContext& ctx) {
    ctx.merge_call([&](Strategy&) {
      mirrored.assign_add(filled(2));
      sum.assign(filled(4));
      expect_tensor("a mirrored variable read in the merge function", mirrored.read(), filled(3));
      expect_tensor("an on-read sum read in the merge function", sum.read(), filled(4));
    });
    return std::pair(mirrored.value(ctx).detach().clone(), sum.value(ctx).clone());
  });
  for (const int64_t r : local_ids(strategy)) {
    expect_tensor("a mirrored variable in the step, after the merge call,", seen[r].first, filled(3));
    expect_tensor(fmt::format("replica {}'s component of an on-read sum, after the merge call,", r), seen[r].second,
                  filled(r == 0 ? 4 : 0));
  }
}

void per_replica_values(Strategy& strategy) {
  const auto different = strategy.per_replica([](ReplicaId r) { return filled(static_cast<double>(1 + r.value())); });
  const auto equal = strategy.per_replica([](ReplicaId) { return filled(2); });
  for (const VariableAggregation aggregation : {kNone, kSum, kMean, kOnlyFirstReplica}) {
    const Variable own = strategy.make_variable(filled(7), {.synchronization = kOnRead, .aggregation = aggregation});
    own.assign(different);
    expect_components(strategy, own, numbers(strategy, 1, 1));
    own.assign_add(different);
    expect_components(strategy, own, numbers(strategy, 2, 2));
    own.assign_sub(equal);
    expect_components(strategy, own, numbers(strategy, 0, 2));

    const Variable all = strategy.make_variable(filled(7), {.aggregation = aggregation});
    all.assign(equal);
    all.assign_add(equal);
    expect_components(strategy, all, numbers(strategy, 4, 0));
    if (strategy.num_replicas() == 1) continue;
    for (const Operation operation : {Operation::kAssign, Operation::kAdd, Operation::kSub}) {
      expect_error_of_difference<DivergenceError>(strategy, "a write of different values to an on-write variable",
                                                  "a DivergenceError",
                                                  thrown_by([&] { write(all, operation, different); }),
                                                  {all.name(), "replicas 0 and 1", "update_from"}, all.name());
      expect_components(strategy, all, numbers(strategy, 4, 0));
    }
  }
  const PerReplica<at::Tensor> too_many(std::vector<at::Tensor>(local_ids(strategy).size() + 1));
  const Variable all = strategy.make_variable(filled(7));
  expect_usage_error("an assign of a value too many", [&] { all.assign(too_many); });
}

// An initial or assigned value is read back bit by bit, for any number of replicas; also -0, NaN and large integers.
void sum_reads_back_bits(Strategy& strategy) {
  const float third = 1.0F / 3;
  const at::Tensor floats = at::tensor(
      {-0.0F, 0.0F, third, -third, INFINITY, std::numeric_limits<float>::denorm_min(), -1e38F, std::nanf("")});
  const at::Tensor integers = at::tensor({int64_t{7}, int64_t{-1}, (int64_t{1} << 53) + 1,
                                          std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()});
  for (const at::Tensor& given :
       {floats, floats.to(at::kDouble), floats.to(at::kHalf), integers, integers.to(at::kInt)}) {
    const VariableOptions options{.synchronization = kOnRead, .aggregation = kSum};
    const Variable fresh = strategy.make_variable(given, options);
    const Variable assigned = strategy.make_variable(at::ones_like(given), options);
    assigned.assign(given);
    expect_bits("what an on-read sum reads that was made with a value", fresh.read(), given);
    expect_bits("what an on-read sum reads that was assigned a value", assigned.read(), given);
    for (const int64_t r : local_ids(strategy)) {
      if (r == 0) continue;
      expect_tensor("another component than replica 0's", assigned.components()[r], at::zeros_like(given));
    }
  }
}

// The mean of equal components has their bits; others are added in float64 and rounded once.
void mean_of_equals(Strategy& strategy) {
  const VariableOptions options{.synchronization = kOnRead, .aggregation = kMean};
  const at::Tensor given = at::tensor({0.1F, -0.0F, std::nanf(""), 3e38F});
  expect_bits("the mean of equal components", strategy.make_variable(given, options).read(), given);
  const Variable spread = strategy.make_variable(at::zeros({1}), options);
  spread.assign(strategy.per_replica([](ReplicaId r) { return at::full({1}, r == 0 ? 16777216.0 : 1.0); }));
  const auto n = static_cast<double>(strategy.num_replicas());
  expect_tensor("the mean of 2^24 and ones", spread.read(), at::full({1}, (16777216.0 + (n - 1)) / n));
}

constexpr const char* kTable =
    "docs/variables.md says what each call does; look at the strategy's Placement for "
    "components that are wrong, at its Reducer for aggregates";

constexpr std::array<StrategyCheck, 5> kMatrixChecks{{
    {"EveryCellOfTheMatrixDoesWhatTheTableSays", every_cell, kTable},
    {"AMergeFunctionWritesLikeTheOutside", merge_function, kTable},
    {"PerReplicaValuesGoToTheirComponentsOrMustBeEqual", per_replica_values, kTable},
    {"AnOnReadSumReadsBackTheBitsThatItWasGiven", sum_reads_back_bits, kTable},
    {"AnOnReadMeanOfEqualComponentsHasTheirBits", mean_of_equals, kTable},
}};

}  // namespace

std::span<const StrategyCheck> matrix_checks() { return kMatrixChecks; }

}  // namespace lockstep::internal::testing
