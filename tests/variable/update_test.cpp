// Strategy::update, update_from, broadcast and on_chief: writes of all replicas at once, from outside or a merge
// function.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>

#include "lockstep/core/counted.h"
#include "lockstep/variable/variable_state.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/strategies.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::expect_step_error;
using torch::Tensor;
using enum VariableSynchronization;
using enum VariableAggregation;

class Updates : public ::testing::TestWithParam<testing::StrategyCase> {
 protected:
  Updates() : strategy_(GetParam().make()) {}
  int64_t replicas() const { return strategy_->num_replicas(); }
  Tensor filled(double value) const { return torch::full({2}, value); }
  Variable mirrored(double value) { return strategy_->make_variable(filled(value)); }

  std::unique_ptr<Strategy> strategy_;
};

TEST_P(Updates, CallOnceForEachCopyOrComponent) {
  const Variable v = mirrored(1);
  int calls = 0;
  strategy_->update(v, [&](Tensor& value) {
    ++calls;
    EXPECT_FALSE(value.requires_grad());
    value.add_(1);
  });
  EXPECT_EQ(calls, static_cast<int>(v.state().copies().size()));
  EXPECT_TRUE(torch::equal(v.read(), filled(2)));
  const Variable own = strategy_->make_variable(filled(1), {.synchronization = kOnRead});
  calls = 0;
  strategy_->update(own, [&](Tensor& value) { value = value + calls++; });  // another tensor is taken too
  EXPECT_EQ(calls, replicas());
  for (int64_t r = 0; r < replicas(); ++r) EXPECT_EQ(own.components()[r][0].item<double>(), 1 + static_cast<double>(r));
}

TEST_P(Updates, GivePerReplicaArgumentsTheirComponentAndOthersWhole) {
  const auto ids = strategy_->per_replica([](ReplicaId r) { return torch::full({2}, static_cast<double>(r)); });
  const Variable own = strategy_->make_variable(filled(1), {.synchronization = kOnRead});
  const auto add = [](Tensor& value, const Tensor& id, double factor) { value.add_(id * factor); };
  strategy_->update(own, add, ids, 2.0);
  for (int64_t r = 0; r < replicas(); ++r) {
    EXPECT_EQ(own.components()[r][0].item<double>(), 1 + 2 * static_cast<double>(r));
  }
  const Variable all = mirrored(1);
  strategy_->update(all, add, strategy_->per_replica([&](ReplicaId) { return filled(3); }), 2.0);
  EXPECT_TRUE(torch::equal(all.read(), filled(7)));
  const PerReplica<Tensor> wrong(std::vector<Tensor>(static_cast<std::size_t>(replicas() + 1)));
  const std::string given = std::to_string(replicas() + 1) + " values";
  const std::string wanted = internal::counted(replicas(), "replica");
  expect_error<UsageError>([&] { strategy_->update(all, add, wrong, 1.0); }, "LS-PER-REPLICA-SIZE",
                           {"update()", given, wanted});
}

// With any number of copies: what counts is what the replicas were given.
TEST_P(Updates, OfReplicasThatMustStayEqualAreRefusedWhereTheyDiffer) {
  if (replicas() == 1) GTEST_SKIP() << "one replica has nobody to differ from";
  const Variable v = mirrored(1);
  const auto ids = strategy_->per_replica([](ReplicaId r) { return torch::full({2}, static_cast<double>(r)); });
  const std::string name = "variable '" + v.name() + "'";
  const auto add = [](Tensor& value, const Tensor& id) { value.add_(id); };
  expect_error<DivergenceError>([&] { strategy_->update(v, add, ids); }, "LS-DIVERGED",
                                {"update", name, "replica 1", "0"});
  EXPECT_TRUE(torch::equal(v.read(), filled(1)));
  if (v.state().copies().size() == 1) return;
  int call = 0;
  expect_error<DivergenceError>([&] { strategy_->update(v, [&](Tensor& value) { value.add_(call++); }); },
                                "LS-DIVERGED", {"update", name, "copy 1"});
  EXPECT_TRUE(torch::equal(v.read(), filled(1)));
}

TEST_P(Updates, ThatThrowChangeNothing) {
  for (const VariableSynchronization synchronization : {kOnWrite, kOnRead}) {
    const Variable v = strategy_->make_variable(filled(1), {.synchronization = synchronization});
    int64_t calls = 0;
    EXPECT_THROW(
        strategy_->update(v,
                          [&](Tensor& value) {
                            value.add_(1);
                            if (++calls == static_cast<int64_t>(v.state().copies().size()) || calls == replicas()) {
                              throw std::runtime_error("no");
                            }
                          }),
        std::runtime_error);
    const std::string name = "variable '" + v.name() + "'";
    expect_error<UsageError>([&] { strategy_->update(v, [](Tensor& value) { value = torch::ones({3}); }); }, "LS-SHAPE",
                             {"update", name, "shape [3]", "[2]"});
    for (const Tensor& component : v.components()) EXPECT_TRUE(torch::equal(component, filled(1)));
    v.assign(filled(2));  // and the variable is usable
  }
}

TEST_P(Updates, WriteNoOtherVariableAndDoNotNest) {
  const Variable v = mirrored(1);
  const Variable w = mirrored(5);
  strategy_->update(v, [&](Tensor& value) { value.add_(w.read()); });  // another one may be read
  EXPECT_TRUE(torch::equal(v.read(), filled(6)));
  for (const auto& bad : std::vector<std::function<void()>>{
           [&] { w.assign(filled(1)); }, [&] { w.assign_add(filled(1)); },
           [&] { strategy_->update_from(0, w, filled(1)); }, [&] { strategy_->update(w, [](Tensor&) {}); },
           [&] { strategy_->update(v, [](Tensor&) {}); }}) {
    const std::string name = "variable '" + v.name() + "'";
    expect_error<UsageError>([&] { strategy_->update(v, [&](Tensor&) { bad(); }); }, "LS-NESTED-CALL", {name});
  }
  EXPECT_TRUE(torch::equal(w.read(), filled(5)));
  EXPECT_TRUE(torch::equal(v.read(), filled(6)));
  const Optimizer optimizer = strategy_->make_optimizer(std::vector<Variable>{w}, torch::optim::AdamOptions(0.5));
  const auto state = optimizer.state();
  const auto average = strategy_->make_moving_average({w}, {.decay = 0.5});
  for (const auto& bad :
       std::vector<std::function<void()>>{[&] { optimizer.load(state); }, [&] { optimizer.set_learning_rate(0.25); },
                                          [&] { [[maybe_unused]] const SwapScope scope = average.swap(); }}) {
    expect_error<UsageError>([&] { strategy_->update(v, [&](Tensor&) { bad(); }); }, "LS-NESTED-CALL",
                             {"variable '" + v.name() + "'"});
  }
}

TEST_P(Updates, FromOneReplicaSetAllInOrderWithOtherWrites) {
  const Variable v = mirrored(1);
  const Variable sum = strategy_->make_variable(filled(1), {.synchronization = kOnRead, .aggregation = kSum});
  const int64_t last = replicas() - 1;
  strategy_->update_from(last, v, filled(4));
  v.assign_add(filled(1));
  EXPECT_TRUE(torch::equal(v.read(), filled(5)));
  strategy_->run([&](ReplicaContext& ctx) {
    ctx.merge_call(
        [&](Strategy& strategy, const PerReplica<Tensor>& given) {
          v.assign_add(filled(100));
          strategy.update_from(last, v, given[last]);
          v.assign_add(filled(0.5));
          strategy.update_from(last, sum, given[last]);
        },
        filled(10 + static_cast<double>(ctx.replica_id())));
    EXPECT_TRUE(torch::equal(v.value(ctx), filled(10.5 + static_cast<double>(last))));
  });
  EXPECT_TRUE(torch::equal(v.read(), filled(10.5 + static_cast<double>(last))));
  EXPECT_TRUE(torch::equal(sum.read(), filled(10 + static_cast<double>(last))));
}

TEST_P(Updates, FromOneReplicaNameWhatIsWrongAndChangeNothing) {
  const Variable v = mirrored(1);
  const std::string name = "variable '" + v.name() + "'";
  const std::string beyond = "replica " + std::to_string(replicas()) + " of " + std::to_string(replicas());
  const std::string before = "replica -1 of " + std::to_string(replicas());
  expect_error<UsageError>([&] { strategy_->update_from(replicas(), v, filled(2)); }, "LS-REPLICA-RANGE",
                           {"Strategy::update_from", beyond});
  expect_error<UsageError>([&] { strategy_->update_from(-1, v, filled(2)); }, "LS-REPLICA-RANGE",
                           {"Strategy::update_from", before});
  expect_error<UsageError>([&] { strategy_->update_from(0, v, Tensor()); }, "LS-NOT-DENSE",
                           {"update_from", name, "undefined"});
  expect_error<UsageError>([&] { strategy_->update_from(0, v, torch::ones({3})); }, "LS-SHAPE",
                           {"update_from", name, "shape [3]", "[2]"});
  expect_error<UsageError>([&] { strategy_->broadcast(0, Tensor()); }, "LS-NOT-DENSE",
                           {"Strategy::broadcast", "undefined"});
  expect_step_error<UsageError>(
      [&] { strategy_->run([&](ReplicaContext&) { strategy_->update_from(0, v, filled(2)); }); }, "LS-INSIDE-STEP",
      {"Strategy::update_from"});
  const auto other = GetParam().make();
  expect_error<UsageError>([&] { other->update_from(0, v, filled(2)); }, "LS-OTHER-STRATEGY",
                           {"Strategy::update_from", name});
  expect_error<UsageError>([&] { other->update(v, [](Tensor&) {}); }, "LS-OTHER-STRATEGY", {"Strategy::update", name});
  EXPECT_TRUE(torch::equal(v.read(), filled(1)));
}

TEST_P(Updates, OnChiefRunsOnceAndGivesEverybodyItsValueOrItsError) {
  int calls = 0;
  EXPECT_EQ(strategy_->on_chief([&] { return ++calls; }), 1);
  strategy_->on_chief([&] { ++calls; });
  const auto pointer = strategy_->on_chief([] { return std::make_unique<int>(7); });
  EXPECT_EQ(*pointer, 7);
  EXPECT_EQ(calls, 2);
  EXPECT_THROW(strategy_->on_chief([]() -> int { throw std::out_of_range("mine"); }), std::out_of_range);
  const auto seen = strategy_->run([&](ReplicaContext& ctx) {
    return ctx.merge_call([&](Strategy& strategy) { return strategy.on_chief([&] { return ++calls; }); });
  });
  for (const int one : seen) EXPECT_EQ(one, 3);
}

// They would wait for workers that are not there; so with one worker too.
TEST_P(Updates, OnChiefRefusesCallsInWhichAllWorkersTakePart) {
  const Variable v = mirrored(1);
  const Variable sum = strategy_->make_variable(filled(1), {.synchronization = kOnRead, .aggregation = kSum});
  const auto model = strategy_->make_module([] { return torch::nn::Linear(2, 2); });
  using Call = std::pair<std::string, std::function<void()>>;
  for (const auto& [name, bad] :
       std::vector<Call>{{"Variable::read", [&] { sum.read(); }},
                         {"Variable::assign", [&] { v.assign(filled(2)); }},
                         {"Replicated::state", [&] { model.state(); }},
                         {"Strategy::run", [&] { strategy_->run([](ReplicaContext&) {}); }},
                         {"Strategy::make_variable", [&] { strategy_->make_variable(filled(1)); }},
                         {"Strategy::broadcast", [&] { strategy_->broadcast(0, filled(1)); }},
                         {"Strategy::on_chief", [&] { strategy_->on_chief([] {}); }}}) {
    expect_error<UsageError>([&, call = bad] { strategy_->on_chief(call); }, "LS-INSIDE-CHIEF", {name, "on_chief"});
  }
  const auto read = strategy_->on_chief([&] {
    strategy_->variables();
    sum.components();
    return v.read();
  });
  EXPECT_TRUE(torch::equal(read, filled(1)));
  v.assign(filled(2));  // free again
}

INSTANTIATE_TEST_SUITE_P(Strategies, Updates, ::testing::ValuesIn(testing::strategy_cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace lockstep
