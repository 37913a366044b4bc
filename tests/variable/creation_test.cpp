// How variables are made: outside of steps and inside, once, whole or not at all, under unique names.
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <source_location>

#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/strategies.h"

namespace lockstep {
namespace {

using testing::error_from;
using testing::expect_error;
using testing::expect_step_error;
using testing::nested_message_from;
using torch::Tensor;
using enum VariableSynchronization;
using enum VariableAggregation;

std::string line(std::source_location place) {
  return std::string(place.file_name()) + ":" + std::to_string(place.line());
}

/// The place so many lines below.
std::string below(const std::string& place, int lines) {
  const auto colon = place.rfind(':');
  return place.substr(0, colon + 1) + std::to_string(std::stoi(place.substr(colon + 1)) + lines);
}

class Creation : public ::testing::TestWithParam<testing::StrategyCase> {
 protected:
  Creation() : strategy_(GetParam().make()) {}

  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const Variable& variable : strategy_->variables()) result.push_back(variable.name());
    return result;
  }
  /// A step that only makes one variable and gives its value.
  template <class... Options>
  Tensor made_in_step(const std::string& name, const std::function<Tensor()>& initial, Options... options) {
    return strategy_->run([&](ReplicaContext& ctx) {
      return ctx.make_variable(name, initial, options...).value(ctx).detach().clone();
    })[0];
  }

  std::unique_ptr<Strategy> strategy_;
};

TEST_P(Creation, TakesATensorOrAFunctionThatIsCalledOnceUnderTheStreamOfItsName) {
  int calls = 0;
  const auto random = [&] {
    ++calls;
    return torch::randn({5});
  };
  const Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  const Variable a = strategy_->make_variable(random, {.name = "a"});
  const Variable b = strategy_->make_variable(random, {.name = "b"});
  EXPECT_EQ(calls, 2);
  EXPECT_FALSE(torch::equal(a.read(), b.read()));
  EXPECT_TRUE(torch::equal(at::detail::getDefaultCPUGenerator().get_state(), before))
      << "the caller's generator is untouched";
  const auto again = GetParam().make();
  EXPECT_TRUE(torch::equal(again->make_variable(random, {.name = "a"}).read(), a.read()));
  EXPECT_TRUE(torch::equal(OneDeviceStrategy({.seed = 3}).make_variable(random, {.name = "a"}).read(), a.read()))
      << "for any number of replicas";
  EXPECT_FALSE(torch::equal(OneDeviceStrategy({.seed = 4}).make_variable(random, {.name = "a"}).read(), a.read()));
  const Variable c = strategy_->make_variable(torch::full({2, 3}, 4.0, torch::kDouble), {.name = "c"});
  EXPECT_EQ(c.sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(c.dtype(), torch::kDouble);
}

TEST_P(Creation, InAStepTheFirstUseMakesTheVariableAndLaterUsesGiveIt) {
  std::atomic<int> calls{0};
  const auto step = [&](ReplicaContext& ctx) {
    const auto random = [&] {
      ++calls;
      return torch::randn({4});
    };
    const Variable v = ctx.make_variable("made", random, {.aggregation = kOnlyFirstReplica});
    const Variable same = ctx.make_variable("made", random, {.aggregation = kOnlyFirstReplica});
    EXPECT_EQ(&v.state(), &same.state());
    v.assign_add(ctx, torch::ones({4}));
    return v;
  };
  const auto first = strategy_->run(step);
  const auto second = strategy_->run(step);
  strategy_->evaluate([&](ReplicaContext& ctx) { EXPECT_EQ(&step(ctx).state(), &first[0].state()); });
  for (const Variable& variable : second) EXPECT_EQ(&variable.state(), &first[0].state());
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(names(), std::vector<std::string>{"made"});
  const Tensor initial =
      OneDeviceStrategy({.seed = 3}).make_variable([] { return torch::randn({4}); }, {.name = "made"}).read();
  EXPECT_TRUE(torch::equal(first[0].read(), initial + 1 + 1 + 1)) << "the same values as outside of a step";
}

TEST_P(Creation, InAStepAVariableOutlivesTheHandlesOfTheStep) {
  for (int i = 0; i < 3; ++i) {
    strategy_->run([&](ReplicaContext& ctx) {
      ctx.make_variable("count", [] { return torch::zeros({}, torch::kLong); },
                        {.synchronization = kOnRead, .aggregation = kSum})
          .assign_add(ctx, torch::ones({}, torch::kLong));
    });
    strategy_->make_variable(torch::ones({1}), {.name = "short"});  // looks for what nobody holds any more
  }
  ASSERT_EQ(names(), std::vector<std::string>{"count"});
  EXPECT_EQ(strategy_->variables()[0].read().item<int64_t>(), 3 * strategy_->num_replicas());
}

TEST_P(Creation, InAStepEveryKindOfVariableCanBeMadeAndTrained) {
  const auto step = [&](ReplicaContext& ctx) {
    const Variable weight = ctx.make_variable("weight", [] { return torch::ones({2}); });
    EXPECT_TRUE(weight.trainable());
    EXPECT_EQ(weight.synchronization(), kOnWrite);
    EXPECT_TRUE(weight.value(ctx).requires_grad());
    weight.value(ctx).sum().backward();
    EXPECT_TRUE(weight.value(ctx).grad().defined());
    const Variable own = ctx.make_variable(
        "own", [] { return torch::ones({2}); }, VariableOptions{.synchronization = kOnRead});
    own.value(ctx).add_(ctx.replica_id().value());
  };
  strategy_->run(step);
  const auto all = strategy_->variables();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1].components()[strategy_->num_replicas() - 1][0].item<double>(),
            static_cast<double>(strategy_->num_replicas()));
  const auto optimizer = strategy_->make_optimizer(std::vector<Variable>{all[0]}, torch::optim::SGDOptions(0.25));
  strategy_->run([&](ReplicaContext& ctx) {
    step(ctx);
    optimizer.step(ctx);
  });
  const auto backwards = static_cast<double>(2 * strategy_->num_replicas());  // the first run's, too
  EXPECT_TRUE(torch::equal(all[0].read(), torch::full({2}, 1 - 0.25 * backwards)));
}

TEST_P(Creation, InAStepTheFunctionRunsOutsideOfReplicas) {
  const Variable other = strategy_->make_variable(torch::full({2}, 3.0), {.name = "other"});
  EXPECT_TRUE(torch::equal(made_in_step("twice", [&] { return other.read() * 2; }), torch::full({2}, 6.0)));
  const auto step = [](ReplicaContext& ctx) {
    ctx.make_variable("bad", [&] { return ctx.all_reduce(Reduction::kSum, torch::ones({2})); });
  };
  expect_step_error<UsageError>([&] { strategy_->run(step); }, "LS-OUTSIDE-STEP", {"all_reduce"});
  EXPECT_EQ(names(), (std::vector<std::string>{"other", "twice"}));
}

TEST_P(Creation, InAStepOtherNamesOrOptionsOfOneReplicaShowTheFirstDifference) {
  if (strategy_->num_replicas() == 1) GTEST_SKIP() << "one replica has nobody to differ from";
  const int64_t odd = strategy_->num_replicas() - 1;
  const auto ones = [] { return torch::ones({1}); };
  const std::string replica = "replica " + std::to_string(odd);
  const auto expect_mismatch = [&](auto step, std::string_view one, std::string_view other, std::string_view more,
                                   const testing::Where& where = testing::Where::current()) {
    const auto error = error_from<ReplicaError>([&] { strategy_->run(step); }, where);
    expect_error<UsageError>([&] { std::rethrow_if_nested(error); }, "LS-MEETING-ORDER", {replica, one, other, more},
                             where);
  };
  expect_mismatch(
      [&](ReplicaContext& ctx) {
        ctx.make_variable("same", ones);
        ctx.make_variable(ctx.replica_id() == odd ? "theirs" : "ours", ones);
      },
      "make_variable('ours', mirrored)", "make_variable('theirs', mirrored)", "meeting 2");
  expect_mismatch(
      [&](ReplicaContext& ctx) {
        ctx.make_variable("kind", ones, {.aggregation = ctx.replica_id() == odd ? kMean : kSum});
      },
      "make_variable('kind', mirrored sum)", "make_variable('kind', mirrored mean)", "meeting 1");
  expect_mismatch(
      [&](ReplicaContext& ctx) {
        if (ctx.replica_id() != odd) ctx.make_variable("some", ones);
      },
      "make_variable('some', mirrored)", "0 meetings", "meeting 1");
  EXPECT_EQ(names(), std::vector<std::string>{"same"}) << "what could not be agreed on was not made";
}

TEST_P(Creation, InAStepASecondUseWithOtherOptionsNamesBothPlaces) {
  made_in_step(
      "v", [] { return torch::ones({1}); }, VariableOptions{.aggregation = kSum});
  const auto place = line(std::source_location::current());
  const auto again = [](ReplicaContext& ctx) {
    ctx.make_variable("v", [] { return torch::ones({1}); }, {.aggregation = kMean});
  };
  const std::string here = below(place, 2);
  expect_step_error<UsageError>([&] { strategy_->run(again); }, "LS-NAME-TAKEN",
                                {here, "variable 'v'", "mirrored mean", "mirrored sum"});
}

TEST_P(Creation, ATakenNameIsRefusedWithBothPlaces) {
  const auto first = line(std::source_location::current());
  const Variable v = strategy_->make_variable(torch::ones({1}), {.name = "v"});
  const auto model = strategy_->make_module([] { return torch::nn::Linear(2, 2); });
  made_in_step("s", [] { return torch::ones({1}); });
  const auto again = [&] { strategy_->make_variable(torch::ones({1}), {.name = "v"}); };
  const std::string of_variable = below(first, 1);
  const std::string of_module = below(first, 2);
  const std::string here = below(first, 4);
  expect_error<UsageError>(again, "LS-NAME-TAKEN", {"variable", "'v'", here, of_variable});
  expect_error<UsageError>([&] { strategy_->make_module([] { return torch::nn::Linear(2, 2); }); }, "LS-NAME-TAKEN",
                           {"module", "'model'", of_module});
  expect_error<UsageError>([&] { strategy_->make_variable(torch::ones({1}), {.name = "model.weight"}); },
                           "LS-NAME-TAKEN", {"'model.weight'", of_module});
  expect_error<UsageError>([&] { strategy_->make_variable(torch::ones({1}), {.name = "s"}); }, "LS-NAME-TAKEN",
                           {"'s'"});
  expect_step_error<UsageError>([&] { made_in_step("v", [] { return torch::ones({1}); }); }, "LS-NAME-TAKEN",
                                {"'v'", of_variable});  // made outside of steps
  EXPECT_EQ(names(), (std::vector<std::string>{"v", "model.weight", "model.bias", "s"}));
}

TEST_P(Creation, AModuleWhoseVariablesAreTakenIsNotTouched) {
  const Variable taken = strategy_->make_variable(torch::ones({1}), {.name = "m.bias"});
  std::vector<torch::nn::Linear> made;
  const auto make = [&] {
    made.emplace_back(2, 2);
    return made.back();
  };
  expect_error<UsageError>([&] { strategy_->make_module(make, {.name = "m"}); }, "LS-NAME-TAKEN", {"'m.bias'"});
  for (std::size_t r = 1; r < made.size(); ++r) EXPECT_NE(made[r]->weight.data_ptr(), made[0]->weight.data_ptr());
  EXPECT_EQ(names(), std::vector<std::string>{"m.bias"});
  strategy_->make_module([] { return torch::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false)); }, {.name = "m"});
}

TEST_P(Creation, NamesThatNobodyHoldsAreFreeAgainAndUnnamedOnesAreCounted) {
  strategy_->make_variable(torch::ones({1}), {.name = "v"});
  const Variable v = strategy_->make_variable(torch::ones({1}), {.name = "v"});
  const Variable first = strategy_->make_variable(torch::ones({1}));
  const Variable second = strategy_->make_variable(torch::ones({1}));
  EXPECT_EQ(names(), (std::vector<std::string>{"v", "variable", "variable_1"}));
}

TEST_P(Creation, AnUnnamedVariablesNameDoesNotDependOnWhatHasDied) {
  const auto last_name = [](bool keep) {
    const auto strategy = GetParam().make();
    std::vector<Variable> kept;
    for (int i = 0; i < 10; ++i) {
      const Variable v = i % 3 == 0
                             ? strategy->make_variable(torch::ones({1}), {.name = "variable_" + std::to_string(i)})
                             : strategy->make_variable(torch::ones({1}));
      if (keep) kept.push_back(v);
    }
    return strategy->make_variable(torch::ones({1})).name();
  };
  EXPECT_EQ(last_name(true), last_name(false));
}

TEST_P(Creation, AMeanOfIntegersASumOfBoolAndUnknownEnumeratorsAreRefused) {
  const auto refused = [&](at::ScalarType type, VariableOptions options, std::string_view code, std::string_view what,
                           const testing::Where& where = testing::Where::current()) {
    const char* dtype = c10::toString(type);
    expect_error<UsageError>([&] { strategy_->make_variable(torch::ones({1}, type), options); }, code,
                             {"variable 'v'", dtype, what}, where);
    const auto make = [&] { return torch::ones({1}, type); };
    expect_step_error<UsageError>([&] { made_in_step("v", make, options); }, code, {"variable 'v'", dtype, what},
                                  where);
  };
  for (const VariableSynchronization synchronization : {kAuto, kOnWrite, kOnRead}) {
    for (const at::ScalarType type : {torch::kInt, torch::kLong, torch::kByte, torch::kBool, torch::kComplexFloat}) {
      refused(type, {.name = "v", .synchronization = synchronization, .aggregation = kMean}, "LS-DTYPE",
              "aggregation kMean");
    }
    refused(torch::kBool, {.name = "v", .synchronization = synchronization, .aggregation = kSum}, "LS-DTYPE",
            "aggregation kSum");
  }
  refused(torch::kFloat, {.name = "v", .aggregation = static_cast<VariableAggregation>(9)}, "LS-OPTION",
          "aggregation 9");
  refused(torch::kFloat, {.name = "v", .synchronization = static_cast<VariableSynchronization>(9)}, "LS-OPTION",
          "synchronization 9");
  EXPECT_TRUE(names().empty());
}

TEST_P(Creation, AnErrorInItLeavesNothingBehind) {
  struct Mine : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  const auto fail = []() -> Tensor { throw Mine("mine"); };
  EXPECT_THROW(strategy_->make_variable(fail, {.name = "v"}), Mine);
  nested_message_from<Mine>([&] { made_in_step("v", fail); });
  expect_error<UsageError>([&] { strategy_->make_variable(Tensor(), {.name = "v"}); }, "LS-NOT-DENSE",
                           {"variable 'v'", "undefined"});
  expect_error<UsageError>([&] { strategy_->make_variable(torch::ones({2}).to_sparse(), {.name = "v"}); },
                           "LS-NOT-DENSE", {"variable 'v'", "sparse"});
  const auto ones = [] { return torch::ones({1}); };
  expect_step_error<UsageError>([&] { made_in_step("v", [] { return Tensor(); }); }, "LS-NOT-DENSE",
                                {"variable 'v'", "undefined"});
  expect_step_error<UsageError>([&] { made_in_step("", ones); }, "LS-NAME", {"make_variable", "name ''"});
  expect_step_error<UsageError>([&] { made_in_step("v", ones, VariableOptions{.name = "w"}); }, "LS-NAME",
                                {"make_variable", "name 'v'", "'w'"});
  EXPECT_THROW(strategy_->make_module([]() -> torch::nn::Linear { throw Mine("mine"); }), Mine);
  EXPECT_TRUE(names().empty());
  const Variable kept = strategy_->make_variable(torch::ones({1}), {.name = "v"});
  EXPECT_EQ(made_in_step("in a step", [] { return torch::ones({1}); }).item<float>(), 1);
  strategy_->make_module([] { return torch::nn::Linear(2, 2); });
}

TEST_P(Creation, AnErrorFailsTheRunAlthoughTheStepCatchesItAndTheNextRunGoesOn) {
  const std::string text = nested_message_from<std::runtime_error>([&] {
    strategy_->run([&](ReplicaContext& ctx) {
      EXPECT_THROW(ctx.make_variable("v", []() -> Tensor { throw std::runtime_error("mine"); }), std::runtime_error);
    });
  });
  EXPECT_EQ(text, "mine");
  EXPECT_EQ(names(), std::vector<std::string>{});
  strategy_->run([&](ReplicaContext& ctx) { ctx.make_variable("v", [] { return torch::ones({1}); }); });
  EXPECT_EQ(names(), std::vector<std::string>{"v"});
}

TEST_P(Creation, AFunctionMayMakeAnotherVariableButNotItsOwn) {
  Variable inner;
  const Variable outer = strategy_->make_variable(
      [&] {
        inner = strategy_->make_variable(torch::full({1}, 2.0), {.name = "inner"});
        return inner.read() + 1;
      },
      {.name = "outer"});
  EXPECT_EQ(outer.read().item<float>(), 3);
  Variable own;
  const auto make_own = [&] { return (own = strategy_->make_variable(torch::ones({1}), {.name = "own"})).read(); };
  expect_error<UsageError>([&] { strategy_->make_variable(make_own, {.name = "own"}); }, "LS-NAME-TAKEN",
                           {"variable", "'own'"});
  EXPECT_EQ(names(), (std::vector<std::string>{"inner", "outer", "own"}));
}

TEST_P(Creation, AStepThatFailsAfterwardsLeavesItsVariablesWithTheirInitialValue) {
  const auto make = [](ReplicaContext& ctx) {
    return ctx.make_variable("v", [] { return torch::full({2}, 5.0); }, {.aggregation = kOnlyFirstReplica});
  };
  EXPECT_THROW(strategy_->run([&](ReplicaContext& ctx) {
    make(ctx);
    if (ctx.replica_id() == strategy_->num_replicas() - 1) throw std::runtime_error("later");
    ctx.all_reduce(Reduction::kSum, torch::ones({1}));
  }),
               ReplicaError);
  ASSERT_EQ(names(), std::vector<std::string>{"v"});
  EXPECT_TRUE(torch::equal(strategy_->variables()[0].read(), torch::full({2}, 5.0)));
  const auto again = strategy_->run(make);
  EXPECT_EQ(&again[0].state(), &strategy_->variables()[0].state());
}

TEST_P(Creation, IsTheSameUnderTheCallersGradAndInferenceModes) {
  for (int mode = 0; mode < 2; ++mode) {
    const torch::NoGradGuard no_grad;
    std::optional<c10::InferenceMode> inference;
    if (mode == 1) inference.emplace(true);
    const std::string name = "v" + std::to_string(mode);
    const Variable v = strategy_->make_variable([] { return torch::randn({2}); }, {.name = name});
    EXPECT_TRUE(v.trainable());
    v.assign(torch::ones({2}));
    const auto model = strategy_->make_module([] { return torch::nn::Linear(2, 2); }, {.name = "m" + name});
    strategy_->evaluate([&](ReplicaContext& ctx) {
      ctx.make_variable("s" + name, [] { return torch::zeros({1}); }, {.synchronization = kOnRead, .aggregation = kSum})
          .assign_add(ctx, v.value(ctx).sum().reshape({1}));
      model(ctx)->forward(torch::ones({1, 2}));
    });
  }
  const torch::AutoGradMode gradients(true);
  strategy_->run([&](ReplicaContext& ctx) {
    const Variable w = ctx.make_variable("w", [] { return torch::ones({2}); });
    (w.value(ctx) * 2).sum().backward();
    EXPECT_TRUE(torch::equal(w.value(ctx).grad(), torch::full({2}, 2.0)));
  });
}

TEST_P(Creation, VariablesListsTheLivingInOrderOfCreation) {
  const Variable a = strategy_->make_variable(torch::ones({1}), {.name = "z"});
  const auto model = strategy_->make_module([] { return torch::nn::BatchNorm1d(2); });
  const auto optimizer = strategy_->make_optimizer(model, torch::optim::SGDOptions(1).momentum(0.9));
  made_in_step("made", [] { return torch::ones({1}); });
  EXPECT_EQ(names(), (std::vector<std::string>{"z", "model.weight", "model.bias", "model.running_mean",
                                               "model.running_var", "model.num_batches_tracked",
                                               "model.weight/momentum_buffer", "model.bias/momentum_buffer", "made"}));
  const std::string table = strategy_->describe_variables();
  for (const char* part : {"variable ", "kind ", "shape ", "bytes", "copies", "where", "z ", "model.running_mean",
                           "mirrored", "on-read mean", "slot", "Float [2]", "8 B", "cpu"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << " in:\n" << table;
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, Creation, ::testing::ValuesIn(testing::strategy_cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace lockstep
