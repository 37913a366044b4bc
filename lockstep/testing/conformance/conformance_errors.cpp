// The conformance checks of errors: what is refused in a step, how a failed step is reported, and that it changes
// nothing.
#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/sgd.h>

#include <array>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "lockstep/testing/conformance/conformance_checks.h"

namespace lockstep::internal::inline testing {

namespace {

using enum VariableSynchronization;
using enum VariableAggregation;

struct Mine : std::runtime_error {
  using std::runtime_error::runtime_error;
};

at::Tensor filled(double value) { return at::full({3}, value); }

void cross_replica_calls(Strategy& strategy) {
  const Variable variable = strategy.make_variable(filled(1), {.name = "v"});
  const auto values = strategy.per_replica([](ReplicaId) { return filled(1); });
  const auto refused = [&](const char* what, auto call, std::string_view instead) {
    expect_usage_error_in_step(strategy, fmt::format("{} in a step", what), [&](ReplicaContext&) { call(); },
                               {instead});
  };
  refused(
      "Strategy::reduce", [&] { strategy.reduce(Reduction::kSum, values); }, "ctx.all_reduce()");
  refused(
      "Strategy::gather", [&] { strategy.gather(values); }, "ctx.all_gather()");
  refused(
      "Strategy::broadcast", [&] { strategy.broadcast(0, filled(1)); }, "ctx.broadcast()");
  refused(
      "Strategy::make_variable", [&] { strategy.make_variable(filled(1)); }, "ctx.make_variable(");
  refused(
      "Variable::read", [&] { variable.read(); }, "value(ctx)");
  refused(
      "Variable::assign without a context", [&] { variable.assign(filled(1)); }, "assign(ctx, value)");
  refused(
      "Strategy::update_from", [&] { strategy.update_from(0, variable, filled(1)); }, "ctx.merge_call()");
  expect_tensor("the variable after calls that were refused", variable.read(), filled(1));
}

void nested_runs(Strategy& strategy) {
  const auto nothing = [](ReplicaContext&) {};
  expect_usage_error_in_step(strategy, "a run in a step", [&](ReplicaContext&) { strategy.run(nothing); }, {"nest"});
  expect_usage_error_in_step(strategy, "an evaluation in a step", [&](ReplicaContext&) { strategy.evaluate(nothing); },
                             {"nest"});
  expect_usage_error_in_step(
      strategy, "a run in a merge function",
      [&](ReplicaContext& ctx) { ctx.merge_call([&](Strategy& inside) { inside.run(nothing); }); }, {"merge_call"});
  strategy.run(nothing);
}

void meetings_that_differ(Strategy& strategy) {
  const int64_t last = strategy.num_replicas() - 1;
  if (last == 0) return;  // with one replica there is no other to differ from
  const std::string who = fmt::format("replica {}", last);
  const auto expect_named = [&](std::string_view what, auto step, std::initializer_list<std::string_view> parts) {
    const auto found = thrown_by([&] { strategy.run(step); });
    expect_error_of_difference<UsageError>(strategy, what, "a UsageError", nested_in(what, found), parts, "all_reduce");
  };
  expect_named("an all_reduce that one replica leaves out",
               [&](ReplicaContext& ctx) {
                 if (ctx.replica_id() != last) ctx.all_reduce(Reduction::kSum, filled(1));
               },
               {who});
  expect_named(
      "an all_reduce of different shapes",
      [&](ReplicaContext& ctx) { ctx.all_reduce(Reduction::kSum, at::ones({ctx.replica_id() == last ? 3 : 2})); },
      {who, "[3]", "[2]"});
  const auto uneven = strategy.per_replica([](ReplicaId r) { return at::ones({r + 1}); });
  expect_error_of_difference<UsageError>(strategy, "reduce without axes of different shapes", "a UsageError",
                                         thrown_by([&] { strategy.reduce(Reduction::kSum, uneven); }), {"[1]", "[2]"},
                                         "reduce");
}

void users_exception(Strategy& strategy) {
  const int64_t last = strategy.num_replicas() - 1;
  strategy.run([](ReplicaContext&) {});
  const auto found = thrown_by([&] {
    strategy.run([&](ReplicaContext& ctx) {
      if (ctx.replica_id() == last) throw Mine("my own");
      ctx.all_reduce(Reduction::kSum, filled(1));
    });
  });
  expect_error_of<Mine>(strategy, last, "what the ReplicaError is nested on", "the step's own exception",
                        nested_in("run()", found), {"my own"});
  if (local_ids(strategy).back() == last) try {
      std::rethrow_exception(found);
    } catch (const ReplicaError& error) {
      expect_equal("the replica of the ReplicaError", error.replica().value(), last);
      expect_equal("its step", error.step(), int64_t{1});
      expect_equal("its messages", error.messages(), std::vector<std::string>{"my own"});
    }
  const auto merge = thrown_by([&] {
    strategy.run([](ReplicaContext& ctx) { ctx.merge_call([](Strategy&) { throw Mine("in the merge"); }); });
  });
  expect_error<Mine>("an exception of a merge function", "itself", nested_in("run()", merge), {"in the merge"});
  expect_equal("what the strategy runs after failed runs",
               strategy.local_results(strategy.run([](ReplicaContext&) { return 1; })),
               std::vector<int>(local_ids(strategy).size(), 1));
}

std::vector<at::Tensor> everything_of(const Strategy& strategy) {
  std::vector<at::Tensor> all;
  for (const Variable& variable : strategy.variables()) {
    for (const at::Tensor& component : variable.components()) all.push_back(component);
  }
  return all;
}

// Variables of all kinds are written in all ways, and then the last replica fails.
void failed_run(Strategy& strategy) {
  const Variable sum = strategy.make_variable(filled(1), {.name = "sum", .aggregation = kSum});
  const Variable total =
      strategy.make_variable(filled(3), {.name = "total", .synchronization = kOnRead, .aggregation = kSum});
  const Variable plain = strategy.make_variable(filled(4), {.name = "plain"});
  const auto model = strategy.make_module([] { return torch::nn::BatchNorm1d(3); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.5).momentum(0.9));
  const auto forward = [&](ReplicaContext& ctx) { return model(ctx)->forward(at::randn({4, 3})).pow(2).sum(); };
  strategy.run([&](ReplicaContext& ctx) {
    forward(ctx).backward();
    optimizer.step(ctx);
    sum.assign_add(ctx, filled(static_cast<double>(ctx.replica_id())));
  });
  const std::vector<at::Tensor> before = everything_of(strategy);
  const auto fail = [&](ReplicaContext& ctx) {
    const at::Tensor loss = forward(ctx) + plain.value(ctx).sum();
    if (loss.requires_grad()) loss.backward();
    sum.assign(ctx, filled(static_cast<double>(ctx.replica_id())));
    total.assign_add(ctx, filled(1));
    ctx.merge_call([&](Strategy& inside) {
      plain.assign(filled(9));
      inside.update(plain, [](at::Tensor& value) { value.mul_(2); });
      inside.update_from(0, sum, filled(8));
    });
    if (ctx.replica_id() + 1 == strategy.num_replicas()) throw Mine("late");
    ctx.all_reduce(Reduction::kSum, filled(1));  // stops here
  };
  const auto expect_undone = [&](const char* call, const std::exception_ptr& found) {
    expect_error_of<Mine>(strategy, strategy.num_replicas() - 1, fmt::format("the step of {}", call),
                          "its own exception", nested_in(call, found), {"late"});
    const std::vector<at::Tensor> after = everything_of(strategy);
    expect_equal(fmt::format("the number of components after {}", call), after.size(), before.size());
    for (std::size_t i = 0; i < before.size(); ++i) {
      expect_bits(fmt::format("a component after {}", call), after[i], before[i]);
    }
  };
  expect_undone("a run that failed", thrown_by([&] { strategy.run(fail); }));
  expect_undone("an evaluation that failed", thrown_by([&] { strategy.evaluate(fail); }));
  expect_undone("a run that failed before its optimizer's step", thrown_by([&] {
                  strategy.run([&](ReplicaContext& ctx) {
                    forward(ctx).backward();
                    if (ctx.replica_id() + 1 == strategy.num_replicas()) throw Mine("late");
                    optimizer.step(ctx);
                  });
                }));
  for (const bool left : strategy.run([&](ReplicaContext& ctx) {
         return plain.value(ctx).grad().defined() || model(ctx)->weight.grad().defined();
       })) {
    expect(!left, "a failed run left a gradient");
  }
}

constexpr const char* kRules = "what may be called where is Strategy's to hold: derive from it and give it decisions";
constexpr const char* kFailure =
    "look at the strategy's Placement for variables that are not as they were, at its Topology for replicas that do "
    "not stop";

constexpr std::array<StrategyCheck, 5> kErrorsChecks{{
    {"ACrossReplicaCallInAStepNamesTheRightOne", cross_replica_calls, kRules},
    {"RunsDoNotNest", nested_runs, kRules},
    {"MeetingsThatDifferNameTheReplica", meetings_that_differ, kRules},
    {"AFailedStepIsNestedOnItsOwnException", users_exception, kFailure},
    {"AFailedRunLeavesVariablesAsTheyWere", failed_run, kFailure},
}};

}  // namespace

std::span<const StrategyCheck> errors_checks() { return kErrorsChecks; }

}  // namespace lockstep::internal::testing
