// The conformance checks of contexts: what runs where and how often, in steps, evaluations, merge functions and
// updates, and random numbers.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <atomic>
#include <tuple>
#include <vector>

#include "lockstep/testing/conformance/conformance_checks.h"

namespace lockstep::internal::inline testing {

namespace {

using enum VariableSynchronization;
using enum VariableAggregation;

at::Tensor filled(double value) { return at::full({2}, value); }

void replicas_are_numbered(Strategy& strategy) {
  const auto n = strategy.num_replicas();
  const auto seen = strategy.run([&](ReplicaContext& ctx) { return ctx.replica_id().value(); });
  expect_equal("the replicas' ids in a step", strategy.local_results(seen), local_ids(strategy));
  const auto outside = strategy.per_replica([](ReplicaId r) { return r.value(); });
  expect_equal("the replicas' ids of per_replica()", strategy.local_results(outside), local_ids(strategy));
  for (const int64_t count : strategy.run([](ReplicaContext& ctx) { return ctx.num_replicas(); })) {
    expect_equal("num_replicas() in a step", count, n);
  }
  expect_equal("is_chief()", strategy.is_chief(), strategy.worker_index() == 0);
}

void arguments(Strategy& strategy) {
  const auto own = strategy.per_replica([](ReplicaId r) { return r.value() * 2; });
  const auto results = strategy.run(std::tuple(own, 5), [](ReplicaContext& ctx, int64_t mine, int whole) {
    return mine == ctx.replica_id() * 2 && whole == 5;
  });
  for (const int64_t r : local_ids(strategy)) {
    expect(results[r], fmt::format("replica {} did not get its component and the whole of another argument", r));
  }
  const PerReplica<int> too_many(std::vector<int>(local_ids(strategy).size() + 1));
  expect_usage_error("a run with a value too many", [&] { strategy.run(too_many, [](ReplicaContext&, int) {}); });
}

void steps_are_counted(Strategy& strategy) {
  const auto step_of = [](ReplicaContext& ctx) { return ctx.step(); };
  const auto everywhere = [&](int64_t step) { return std::vector<int64_t>(local_ids(strategy).size(), step); };
  expect_equal("step() in the first run", strategy.local_results(strategy.run(step_of)), everywhere(0));
  expect_equal("step() in the second run", strategy.local_results(strategy.run(step_of)), everywhere(1));
  expect_equal("step() in an evaluation after two runs", strategy.local_results(strategy.evaluate(step_of)),
               everywhere(2));
  thrown_by([&] { strategy.run([](ReplicaContext&) { throw std::runtime_error("no"); }); });
  expect_equal("step() after two runs, an evaluation and a failed run", strategy.step(), int64_t{2});
}

void evaluation_has_no_gradients(Strategy& strategy) {
  const auto modes = [](ReplicaContext&) { return at::GradMode::is_enabled(); };
  for (const bool on : strategy.evaluate(modes)) expect(!on, "an evaluation computes gradients");
  for (const bool on : strategy.run(modes)) expect(on, "a step computes no gradients after an evaluation");
}

void merge_function_runs_once(Strategy& strategy) {
  const Variable variable = strategy.make_variable(filled(1), {.name = "v"});
  int calls = 0;
  const auto results = strategy.run([&](ReplicaContext& ctx) {
    return ctx.merge_call(
        [&](Strategy& inside, const PerReplica<at::Tensor>& tensors, const PerReplica<int64_t>& ids) {
          ++calls;
          expect(&inside == &strategy, "a merge function gets another strategy");
          expect_equal("the replicas' ids in a merge function", inside.local_results(ids), local_ids(strategy));
          variable.assign_add(inside.reduce(Reduction::kSum, tensors));
          inside.update(variable, [](at::Tensor& value) { value.mul_(2); });
          inside.update_from(0, variable, variable.read() + 1);
          expect_tensor("gather in a merge function", inside.gather(tensors),
                        at::full({2 * inside.num_replicas()}, 3.0));
          return variable.read()[0].item<double>();
        },
        filled(3), ctx.replica_id().value());
  });
  expect_equal("how often the merge function ran", calls, 1);
  const double expected = 2 * (1 + 3 * static_cast<double>(strategy.num_replicas())) + 1;
  for (const double result : results) expect_equal("what merge_call gave", result, expected);
  expect_tensor("what the merge function left", variable.read(), filled(expected));
}

void merge_function_hands_out(Strategy& strategy) {
  const auto results = strategy.run([](ReplicaContext& ctx) {
    return ctx.merge_call(
        [](Strategy& inside) { return inside.per_replica([](ReplicaId r) { return r.value() * 10; }); });
  });
  for (const int64_t r : local_ids(strategy)) {
    expect_equal(fmt::format("replica {}'s component of what a merge function gave", r), results[r], r * 10);
  }
}

void update(Strategy& strategy) {
  const auto n = strategy.num_replicas();
  const Variable all = strategy.make_variable(filled(1), {.name = "all"});
  const Variable own = strategy.make_variable(filled(1), {.name = "own", .synchronization = kOnRead});
  int calls = 0;
  strategy.update(own, [&](at::Tensor& value) { value.add_(calls++); });
  const std::vector<int64_t> ids_here = local_ids(strategy);
  expect_equal("how often update() of an on-read variable called its function", calls,
               static_cast<int>(ids_here.size()));
  for (const int64_t r : ids_here) {
    expect_tensor(fmt::format("replica {}'s component after update()", r), own.components()[r],
                  filled(1 + static_cast<double>(r - ids_here.front())));
  }
  strategy.update(all, [](at::Tensor& value) { value.add_(1); });
  for (const at::Tensor& component : all.components())
    expect_tensor("a component after update()", component, filled(2));
  if (n == 1) return;
  const auto ids = strategy.per_replica([](ReplicaId r) { return filled(static_cast<double>(r)); });
  const auto add = [](at::Tensor& value, const at::Tensor& id) { value.add_(id); };
  expect_error_of_difference<DivergenceError>(strategy, "an update by different arguments", "a DivergenceError",
                                              thrown_by([&] { strategy.update(all, add, ids); }), {"'all'"}, "'all'");
  for (const at::Tensor& component : all.components()) {
    expect_tensor("a component after an update that was refused", component, filled(2));
  }
}

void update_from(Strategy& strategy) {
  const Variable all = strategy.make_variable(filled(1), {.name = "all"});
  const Variable sum =
      strategy.make_variable(filled(1), {.name = "sum", .synchronization = kOnRead, .aggregation = kSum});
  const int64_t last = strategy.num_replicas() - 1;
  strategy.run([&](ReplicaContext& ctx) {
    ctx.merge_call(
        [&](Strategy& inside, const PerReplica<at::Tensor>& given) {
          const at::Tensor of_last = local_ids(inside).back() == last ? given[last] : at::Tensor();
          all.assign_add(filled(100));
          inside.update_from(last, all, of_last);
          all.assign_add(filled(0.5));
          inside.update_from(last, sum, of_last);
        },
        filled(10 + static_cast<double>(ctx.replica_id())));
  });
  expect_tensor("an on-write variable after update_from() and an addition", all.read(),
                filled(10.5 + static_cast<double>(last)));
  expect_tensor("an on-read sum after update_from()", sum.read(), filled(10 + static_cast<double>(last)));
}

void on_chief(Strategy& strategy) {
  int calls = 0;  // on the chief alone
  expect_equal("what on_chief() gave", strategy.on_chief([&] { return ++calls; }), 1);
  for (const int one : strategy.run([&](ReplicaContext& ctx) {
         return ctx.merge_call([&](Strategy& inside) { return inside.on_chief([&] { return ++calls; }); });
       })) {
    expect_equal("what on_chief() gave in a merge function", one, 2);
  }
}

void random_numbers(Strategy& strategy) {
  const auto draw = [](ReplicaContext& ctx) { return std::pair(at::rand({4}), at::rand({4}, ctx.shared_random())); };
  const auto first = strategy.run(draw);
  const auto second = strategy.run(draw);
  for (const int64_t r : local_ids(strategy)) {
    expect(!at::equal(first[r].first, second[r].first), fmt::format("replica {} draws the same in two steps", r));
  }
  const at::Tensor own = strategy.gather(strategy.per_replica([&](ReplicaId r) {
    return first[r].first.view({1, 4});
  }));
  const at::Tensor shared = strategy.gather(strategy.per_replica([&](ReplicaId r) {
    return first[r].second.view({1, 4});
  }));
  for (int64_t r = 1; r < strategy.num_replicas(); ++r) {
    expect_bits(fmt::format("what replica {} draws from the shared stream", r), shared[r], shared[0]);
    for (int64_t q = 0; q < r; ++q) {
      expect(!at::equal(own[r], own[q]), fmt::format("replica {} draws what replica {} draws", r, q));
    }
  }
}

// Only the library may change a mirrored variable.
void foreign_write(Strategy& strategy) {
  const Variable variable = strategy.make_variable(filled(1), {.name = "mine"});
  const int64_t last = strategy.num_replicas() - 1;
  const auto found = thrown_by([&] {
    strategy.run([&](ReplicaContext& ctx) {
      const at::NoGradGuard no_grad;
      if (ctx.replica_id() == last) variable.value(ctx).add_(1);
    });
  });
  const char* what = "a step that wrote a mirrored variable in place, behind the library's back,";
  expect_error_of<DivergenceError>(strategy, last, what, "a DivergenceError", nested_in(what, found),
                                   {"'mine'", fmt::format("replica {}", last)});
  variable.assign(filled(3));
  for (const at::Tensor& component : variable.components()) {
    expect_tensor("a component of the variable, assigned again,", component, filled(3));
  }
}

constexpr const char* kTopology = "look at the strategy's Topology: replicas are numbered from 0 and dealt in blocks";
constexpr const char* kPlacement = "look at the strategy's Placement: each replica stands in exactly one copy";
constexpr const char* kStrategy = "derive from Strategy and give it decisions; it does the rest";

constexpr std::array<StrategyCheck, 11> kContextsChecks{{
    {"ReplicasAreNumberedFromZero", replicas_are_numbered, kTopology},
    {"ArgumentsReachTheirReplicas", arguments, kTopology},
    {"StepsAreCountedAndNotEvaluations", steps_are_counted, kStrategy},
    {"AnEvaluationHasNoGradients", evaluation_has_no_gradients, kStrategy},
    {"AMergeFunctionRunsOnceOutsideOfReplicas", merge_function_runs_once, kPlacement},
    {"AMergeFunctionHandsAPerReplicaOut", merge_function_hands_out, kTopology},
    {"AnUpdateReachesEveryCopyOrNone", update, kPlacement},
    {"AnUpdateFromOneReplicaReachesAll", update_from, kPlacement},
    {"OnChiefRunsOnce", on_chief, kStrategy},
    {"ReplicasDrawNumbersOfTheirOwnAndSharedOnes", random_numbers, kTopology},
    {"AForeignWriteIsFoundAndNamed", foreign_write, kPlacement},
}};

}  // namespace

std::span<const StrategyCheck> contexts_checks() { return kContextsChecks; }

}  // namespace lockstep::internal::testing
