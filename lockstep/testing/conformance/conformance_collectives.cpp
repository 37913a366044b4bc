// The conformance checks of collectives: reduce, gather and broadcast, in a step and outside, and the sum of gradients
// in an optimizer's step.
#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <array>
#include <tuple>
#include <vector>

#include "lockstep/testing/conformance/conformance_checks.h"

namespace lockstep::internal::inline testing {

at::Tensor small_integers(int64_t replica, at::IntArrayRef shape, at::ScalarType type) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return (at::arange(count, at::kLong) * 3 + replica * 7).remainder(11).sub(5).to(type).view(shape);
}

at::Tensor reduced(Reduction reduction, const std::vector<at::Tensor>& values) {
  const at::Tensor all = at::stack(values).to(at::kDouble);
  switch (reduction) {
    case Reduction::kSum: return all.sum(0);
    case Reduction::kMean: return all.mean(0);
    case Reduction::kMin: return all.amin(0);
    default: return all.amax(0);
  }
}

namespace {

constexpr std::array<Reduction, 4> kReductions{Reduction::kSum, Reduction::kMean, Reduction::kMin, Reduction::kMax};

/// Values whose sum depends on the order of additions: large values cancel each other, or absorb small ones.
at::Tensor hard_to_add(int64_t replica) {
  const at::Tensor element = at::arange(60, at::kDouble);
  return at::sin(element * 12.9898 + static_cast<double>(replica) * 78.233)
      .mul(at::pow(10.0, (element + 5 * replica).remainder(9)))
      .to(at::kFloat);
}

PerReplica<at::Tensor> values_of(Strategy& strategy, at::IntArrayRef shape, at::ScalarType type) {
  return strategy.per_replica([&](ReplicaId r) { return small_integers(r, shape, type); });
}

void reduce_of(Strategy& strategy, const std::vector<at::ScalarType>& types) {
  const std::vector<std::vector<int64_t>> shapes{{}, {1}, {0}, {3, 5}, {5000}};
  for (const auto type : types) {
    if (type == at::kBFloat16 && strategy.num_replicas() > 32) continue;  // it cannot represent the sums
    for (const auto& shape : shapes) {
      for (const Reduction reduction : kReductions) {
        const auto values = values_of(strategy, shape, type);
        const bool fraction = reduction == Reduction::kMean && at::isIntegralType(type, false);
        const at::Tensor expected =
            reduced(reduction, of_all(strategy, [&](int64_t r) { return small_integers(r, shape, type); }))
                .to(fraction ? at::kDouble : type);
        const std::string what =
            fmt::format("reduce({}) of {} [{}]", name_of(reduction), c10::toString(type), fmt::join(shape, ", "));
        const at::Tensor found = strategy.reduce(reduction, values);
        expect_close(what, found, expected);
        for (const at::Tensor& one : strategy.run(
                 values, [&](ReplicaContext&ctx, const at::Tensor&mine) { return ctx.all_reduce(reduction, mine); })) {
          expect_bits("all_reduce in a step, which must be reduce() outside, " + what + ",", one, found);
        }
      }
    }
  }
}

void reduce(Strategy& strategy) {
  reduce_of(strategy, {at::kFloat, at::kDouble, at::kInt, at::kLong, at::kHalf, at::kBFloat16});
}

void reduce_over_axes(Strategy& strategy) {
  // Replica r has r rows, so the first has none. The last has one more, so that there is a row for any number.
  const auto rows = [&](int64_t r) { return r + 1 == strategy.num_replicas() ? r + 1 : r; };
  for (const auto type : {at::kDouble, at::kInt}) {
    const auto part = [&](int64_t r) { return small_integers(r, {rows(r), 2}, type); };
    const auto values = strategy.per_replica(part);
    const at::Tensor all = at::cat(of_all(strategy, part));
    const at::Tensor wide = all.to(at::kDouble);
    const std::string what = fmt::format("of uneven parts of {} over axis 0", c10::toString(type));
    expect_tensor("reduce(sum) " + what, strategy.reduce(Reduction::kSum, values, 0), all.sum(0).to(type));
    expect_close("reduce(mean) " + what, strategy.reduce(Reduction::kMean, values, 0), wide.mean(0));
    expect_close("reduce(mean) " + what + ", named -2,", strategy.reduce(Reduction::kMean, values, -2), wide.mean(0));
    expect_tensor("reduce(min) " + what, strategy.reduce(Reduction::kMin, values, 0), all.amin(0));
    expect_tensor("reduce(max) " + what, strategy.reduce(Reduction::kMax, values, 0), all.amax(0));
    expect_close("reduce(mean) over both axes", strategy.reduce(Reduction::kMean, values, {0, 1}), wide.mean());
    expect_tensor("reduce(sum) over both axes", strategy.reduce(Reduction::kSum, values, {0, 1}), all.sum().to(type));
  }
  const auto nothing = strategy.per_replica([](ReplicaId) { return at::ones({0, 2}); });
  expect_tensor("reduce(sum) of no rows", strategy.reduce(Reduction::kSum, nothing, 0), at::zeros({2}));
  expect_usage_error("reduce(mean) of no rows", [&] { strategy.reduce(Reduction::kMean, nothing, 0); });
}

// The same values, each time at other addresses: the replicas' places in memory rotate from turn to turn.
void same_bits_each_time(Strategy& strategy) {
  const int64_t n = strategy.num_replicas();
  std::vector<at::Tensor> places;
  for (int64_t r = 0; r < n; ++r) places.push_back(at::empty({60}));
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMean}) {
    at::Tensor first;
    for (int64_t turn = 0; turn < n + 4; ++turn) {
      const auto values = strategy.per_replica([&](ReplicaId r) {
        at::Tensor& place = places[static_cast<std::size_t>((r + turn) % n)];
        return place.copy_(hard_to_add(r));
      });
      const at::Tensor found = strategy.reduce(reduction, values);
      if (!first.defined()) first = found;
      const std::string what = fmt::format("({}) of the same values, the {}th time,", name_of(reduction), turn + 1);
      expect_bits("reduce" + what, found, first);
      const auto in_step = strategy.run(
          values, [&](ReplicaContext& ctx, const at::Tensor& mine) { return ctx.all_reduce(reduction, mine); });
      for (const at::Tensor& one : in_step) expect_bits("all_reduce" + what, one, first);
    }
  }
}

void own_tensors(Strategy& strategy) {
  for (const Reduction reduction : kReductions) {
    const auto values = values_of(strategy, {5}, at::kFloat);
    const at::Tensor sum = strategy.reduce(reduction, values);
    const auto results = strategy.run(values, [&](ReplicaContext& ctx, const at::Tensor& mine) {
      at::Tensor result = ctx.all_reduce(reduction, mine);
      result.add_(1000 + ctx.replica_id().value());
      return result;
    });
    at::Tensor changed = strategy.reduce(reduction, values);
    changed.fill_(-1);
    const auto given = values_of(strategy, {5}, at::kFloat);
    for (const int64_t r : local_ids(strategy)) {
      expect_tensor(fmt::format("what replica {} gave to {}, after all results were changed,", r, name_of(reduction)),
                    values[r], given[r]);
      expect_close("a result that its replica changed", results[r], sum + (1000 + r));
    }
  }
}

// Compares d/dx_r of the sum over q of w_q * all_reduce(2 x)_q with its formula.
void differentiable(Strategy& strategy) {
  const auto n = static_cast<double>(strategy.num_replicas());
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMean}) {
    const auto gradients = strategy.run([&](ReplicaContext& ctx) {
      at::Tensor x = small_integers(ctx.replica_id(), {3}, at::kFloat).requires_grad_();
      const at::Tensor y = ctx.all_reduce(reduction, x * 2);
      (y * static_cast<double>(ctx.replica_id() + 1)).sum().backward();
      return x.grad();
    });
    const double total = n * (n + 1);
    for (const at::Tensor& gradient : gradients) {
      expect_close(fmt::format("the gradient of all_reduce({})", name_of(reduction)), gradient,
                   at::full({3}, reduction == Reduction::kSum ? total : total / n));
    }
  }
  const auto of_largest = strategy.run([&](ReplicaContext& ctx) {
    // Element 0: all are equal. Element 1: the last replica's is the largest.
    at::Tensor x = at::tensor({1.0, static_cast<double>(ctx.replica_id())}).requires_grad_();
    ctx.all_reduce(Reduction::kMax, x).sum().backward();
    return x.grad();
  });
  for (const int64_t r : local_ids(strategy)) {
    const double last = r + 1 == strategy.num_replicas() ? n : 0;
    expect_tensor(fmt::format("replica {}'s gradient of all_reduce(max)", r), of_largest[r],
                  at::tensor({r == 0 ? n : 0, last}));
  }
}

void list_meets_once(Strategy& strategy) {
  const auto n = static_cast<double>(strategy.num_replicas());
  for (const auto& sums : strategy.run([](ReplicaContext& ctx) {
         const at::Tensor turned = at::arange(6, at::kFloat).view({2, 3}).t();
         return ctx.all_reduce(Reduction::kSum, std::vector<at::Tensor>{at::ones({2}), turned});
       })) {
    expect_equal("the number of results of all_reduce(sum) of two tensors", sums.size(), std::size_t{2});
    expect_tensor("the first of them", sums[0], at::full({2}, n));
    expect_tensor("the second, of a transposed tensor,", sums[1], at::arange(6, at::kFloat).view({2, 3}).t() * n);
  }
}

void gather(Strategy& strategy) {
  const auto row_of = [](int64_t r) { return small_integers(r, {r % 3, 2}, at::kFloat); };
  const auto column_of = [](int64_t r) { return small_integers(r, {2, 1 + r % 2}, at::kLong); };
  const auto rows = strategy.per_replica(row_of);
  const auto columns = strategy.per_replica(column_of);
  const at::Tensor all_rows = at::cat(of_all(strategy, row_of));
  const at::Tensor all_columns = at::cat(of_all(strategy, column_of), 1);
  expect_tensor("gather of uneven rows", strategy.gather(rows), all_rows);
  expect_tensor("gather of uneven columns", strategy.gather(columns, -1), all_columns);
  const auto in_step =
      strategy.run(std::tuple(rows, columns), [](ReplicaContext& ctx, const auto& row, const auto& column) {
        return std::pair(ctx.all_gather(row), ctx.all_gather(column, -1));
      });
  for (const auto& [row, column] : in_step) {
    expect_tensor("all_gather of uneven rows", row, all_rows);
    expect_tensor("all_gather of uneven columns", column, all_columns);
  }
  const auto gradients = strategy.run([](ReplicaContext& ctx) {
    at::Tensor x = at::ones({ctx.replica_id() + 1}).requires_grad_();
    const at::Tensor all = ctx.all_gather(x * 3);
    (all * at::arange(all.numel())).sum().backward();
    return x.grad();
  });
  for (const int64_t r : local_ids(strategy)) {
    const int64_t offset = r * (r + 1) / 2;
    expect_close(fmt::format("replica {}'s gradient of all_gather", r), gradients[r],
                 at::arange(offset, offset + r + 1, at::kFloat) * (3 * strategy.num_replicas()));
  }
}

void broadcast(Strategy& strategy) {
  const at::Tensor five = at::full({3}, 5.0);
  const ReplicaId last = strategy.num_replicas() - 1;
  expect_tensor("broadcast outside of steps", strategy.broadcast(last, five), five);
  const auto results = strategy.run([&](ReplicaContext& ctx) {
    at::Tensor value = ctx.broadcast(last, ctx.replica_id() == last ? five : at::Tensor());
    value.add_(ctx.replica_id().value());
    return value;
  });
  for (const int64_t r : local_ids(strategy)) {
    expect_tensor(fmt::format("broadcast in a step, plus {}, on replica {}", r, r), results[r], five + r);
  }
}

// The program makes the variables itself, as no strategy trains such variables locally.
void optimizer_steps_by_the_sum(Strategy& strategy) {
  const auto n = strategy.num_replicas();
  const Variable all = strategy.make_variable(at::ones({3}), {.name = "all"});
  const Variable of_last = strategy.make_variable(at::ones({3}), {.name = "of_last"});
  const Variable of_none = strategy.make_variable(at::ones({3}), {.name = "of_none"});
  const auto optimizer =
      strategy.make_optimizer(std::vector<Variable>{all, of_last, of_none}, torch::optim::SGDOptions(0.5));
  const auto [applied, norms, kept] = strategy.run([&](ReplicaContext& ctx) {
    at::Tensor loss = all.value(ctx).sum() * static_cast<double>(ctx.replica_id() + 1);
    if (ctx.replica_id() + 1 == n) loss = loss + of_last.value(ctx).sum() * 4;
    loss.backward();
    const StepInfo info = optimizer.step(ctx);
    const bool has_gradient = all.value(ctx).grad().defined() || of_last.value(ctx).grad().defined();
    return std::tuple(info.applied, info.global_norm, has_gradient);
  });
  const auto sum = static_cast<double>(n * (n + 1)) / 2;
  expect_tensor("a variable whose replicas have the gradients 1, 2, ..., after a step of SGD(0.5),", all.read(),
                at::full({3}, 1 - 0.5 * sum));
  expect_tensor("one of which the last replica alone has a gradient, 4,", of_last.read(), at::full({3}, -1.0));
  expect_tensor("one of which none has a gradient", of_none.read(), at::ones({3}));
  const double norm = std::sqrt(3 * (sum * sum + 16));
  for (const bool is_applied : applied) expect(is_applied, "StepInfo says that the step was not applied");
  for (const double found : norms) {
    expect(std::abs(found - norm) <= 1e-5 * norm,
           fmt::format("StepInfo's global_norm is {}, expected {}", found, norm));
  }
  for (const bool has_gradient : kept) expect(!has_gradient, "the step left a gradient");
}

void all_of_any_number(Strategy& strategy) {
  reduce_of(strategy, {at::kFloat, at::kInt});
  same_bits_each_time(strategy);
  gather(strategy);
  broadcast(strategy);
  optimizer_steps_by_the_sum(strategy);
}

constexpr const char* kReducer =
    "look at the strategy's Reducer: the result is of every replica's value once, new, and a mean is divided by their "
    "number after the sum";
constexpr const char* kOrder =
    "look at the strategy's Reducer: it adds in the order of replicas, whatever their addresses and the calls before";

constexpr std::array<StrategyCheck, 9> kCollectivesChecks{{
    {"ReduceIsOfEveryReplicasValueOnce", reduce, kReducer},
    {"ReduceOverAxesIsOfAllElements", reduce_over_axes, kReducer},
    {"ReduceGivesTheSameBitsEachTime", same_bits_each_time, kOrder},
    {"ResultsAreTensorsOfTheirOwn", own_tensors, kReducer},
    {"AllReduceIsDifferentiable", differentiable, kReducer},
    {"AllReduceTakesLists", list_meets_once, kReducer},
    {"GatherJoinsUnevenPartsInReplicaOrder", gather, kReducer},
    {"BroadcastGivesOneReplicasTensorToAll", broadcast, "each replica gets a copy of its own"},
    {"AnOptimizerStepsByTheSumOfAllGradients", optimizer_steps_by_the_sum, kReducer},
}};

constexpr std::array<StrategyCheck, 1> kNumbersChecks{{
    {"ValuesOfSoManyReplicasBecomeOne", all_of_any_number, kReducer},
}};

}  // namespace

std::span<const StrategyCheck> collectives_checks() { return kCollectivesChecks; }
std::span<const StrategyCheck> numbers_checks() { return kNumbersChecks; }

}  // namespace lockstep::internal::testing
