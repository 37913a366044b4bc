// What strategies do outside of steps, and the rules of run().
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <set>

#include "lockstep/core/counted.h"
#include "lockstep/replica/pool/lanes.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::error_from;
using testing::expect_error;
using testing::has_value;
using testing::lanes;
using torch::Tensor;

class StrategyOf : public ::testing::TestWithParam<std::pair<int64_t, int>> {
 protected:
  int64_t replicas() const { return GetParam().first; }
  MirroredStrategy strategy_{{.devices = lanes(GetParam().second), .replicas = GetParam().first}};
};

TEST_P(StrategyOf, RunGivesEachReplicaItsComponentAndEverythingElseWhole) {
  const auto own = strategy_.per_replica([](ReplicaId r) { return r.value() * 2; });
  const auto results = strategy_.run(std::tuple(own, 5, std::string("x")),
                                     [](ReplicaContext& ctx, int64_t mine, int whole, const std::string& text) {
                                       EXPECT_EQ(mine, ctx.replica_id() * 2);
                                       return mine + whole + static_cast<int64_t>(text.size());
                                     });
  for (int64_t r = 0; r < replicas(); ++r) EXPECT_EQ(results[r], 2 * r + 6);
  EXPECT_EQ(strategy_.run(7, [](ReplicaContext&, int x) { return x; })[0], 7);
  EXPECT_EQ(strategy_.run(own, [](ReplicaContext&, int64_t x) { return x; })[replicas() - 1], 2 * (replicas() - 1));
}

TEST_P(StrategyOf, RunGivesAPerReplicaOfAnyTypeAndNothingForNothing) {
  static_assert(std::is_void_v<decltype(strategy_.run([](ReplicaContext&) {}))>);
  static_assert(std::is_same_v<decltype(strategy_.run([](ReplicaContext&) { return true; })), PerReplica<bool>>);
  struct NotDefaultConstructible {
    explicit NotDefaultConstructible(int64_t v) : value(v) {}
    int64_t value;
  };
  const auto results = strategy_.run([](ReplicaContext& ctx) { return NotDefaultConstructible(ctx.replica_id()); });
  EXPECT_EQ(results[replicas() - 1].value, replicas() - 1);
  const auto flags = strategy_.run([](ReplicaContext& ctx) { return ctx.replica_id() % 2 == 0; });
  for (int64_t r = 0; r < replicas(); ++r) EXPECT_EQ(flags[r], r % 2 == 0);
  EXPECT_EQ(strategy_.run([](ReplicaContext& ctx) { return std::make_unique<int64_t>(ctx.replica_id()); }).size(),
            static_cast<std::size_t>(replicas()));
}

TEST_P(StrategyOf, StepCountsCompletedRunsAndNotEvaluations) {
  EXPECT_EQ(strategy_.step(), 0);
  EXPECT_EQ(strategy_.run([](ReplicaContext& ctx) { return ctx.step(); })[0], 0);
  EXPECT_EQ(strategy_.run([](ReplicaContext& ctx) { return ctx.step(); })[0], 1);
  strategy_.evaluate([](ReplicaContext& ctx) { EXPECT_EQ(ctx.step(), 2); });
  EXPECT_THROW(strategy_.run([](ReplicaContext&) { throw std::runtime_error("no"); }), ReplicaError);
  EXPECT_EQ(strategy_.step(), 2);
}

TEST_P(StrategyOf, ContextsKnowWhoTheyAre) {
  strategy_.run([&](ReplicaContext& ctx) {
    EXPECT_EQ(ctx.num_replicas(), replicas());
    EXPECT_EQ(ctx.device(), torch::Device(torch::kCPU));
  });
  const auto ids = strategy_.run([](ReplicaContext& ctx) { return ctx.replica_id().value(); });
  for (int64_t r = 0; r < replicas(); ++r) EXPECT_EQ(ids[r], r);
}

TEST_P(StrategyOf, AFailedStepIsAReplicaErrorNestedOnTheStepsOwnException) {
  struct Mine : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  const int64_t bad = replicas() - 1;
  try {
    strategy_.run([&](ReplicaContext& ctx) {
      if (ctx.replica_id() == bad) throw Mine("my own");
      ctx.all_reduce(Reduction::kSum, torch::ones({1}));
    });
    FAIL() << "nothing was thrown";
  } catch (const ReplicaError& error) {
    EXPECT_EQ(error.replica(), bad);
    EXPECT_EQ(error.step(), 0);
    EXPECT_EQ(error.messages(), std::vector<std::string>{"my own"});
    EXPECT_THROW(std::rethrow_if_nested(error), Mine);
    EXPECT_THROW(std::rethrow_exception(error.exceptions()[0]), Mine);
  }
  EXPECT_EQ(strategy_.run([](ReplicaContext&) { return 1; })[0], 1) << "the strategy goes on";
}

TEST_P(StrategyOf, WhatIsNoStdExceptionIsReportedToo) {
  try {
    strategy_.run([](ReplicaContext&) { throw 5; });
    FAIL();
  } catch (const ReplicaError& error) {
    EXPECT_THROW(std::rethrow_if_nested(error), int);
  }
}

TEST_P(StrategyOf, AFailedRunLeavesVariablesAsTheyWereAndNoGradients) {
  const auto v = strategy_.make_variable(torch::ones({4}), {.name = "v"});
  const auto optimizer = strategy_.make_optimizer(std::vector<Variable>{v}, torch::optim::SGDOptions(1));
  EXPECT_THROW(strategy_.run([&](ReplicaContext& ctx) {
    v.value(ctx).sum().backward();
    if (ctx.replica_id() == 0) throw std::runtime_error("before the step");
    optimizer.step(ctx);
  }),
               ReplicaError);
  EXPECT_TRUE(torch::equal(v.read(), torch::ones({4})));
  strategy_.run([&](ReplicaContext& ctx) { EXPECT_FALSE(v.value(ctx).grad().defined()); });
}

TEST_P(StrategyOf, EvaluateTurnsGradientsOffAndModulesToEvaluationAndBack) {
  const auto model = strategy_.make_module([] {
    auto sequence = torch::nn::Sequential(torch::nn::Linear(2, 2), torch::nn::Dropout(0.5), torch::nn::BatchNorm1d(2));
    sequence[2]->as<torch::nn::BatchNorm1d>()->eval();  // frozen for good
    return sequence;
  });
  const auto modes = [&](ReplicaContext& ctx) {
    return std::vector<bool>{torch::GradMode::is_enabled(), model(ctx)->is_training(),
                             model(ctx)->ptr(1)->is_training(), model(ctx)->ptr(2)->is_training()};
  };
  EXPECT_EQ(strategy_.evaluate(modes)[replicas() - 1], (std::vector<bool>{false, false, false, false}));
  EXPECT_EQ(strategy_.run(modes)[replicas() - 1], (std::vector<bool>{true, true, true, false}));
  EXPECT_THROW(strategy_.evaluate([](ReplicaContext&) { throw std::runtime_error("no"); }), ReplicaError);
  EXPECT_EQ(strategy_.run(modes)[0], (std::vector<bool>{true, true, true, false})) << "also after a failure";
}

// TensorFlow's rules of reduce: tf-distribute 4.2.
TEST_P(StrategyOf, ReduceWithoutAxisGivesEachReplicaTheSameWeight) {
  const auto values = strategy_.per_replica([](ReplicaId r) { return torch::full({2}, static_cast<double>(r + 1)); });
  const auto n = static_cast<double>(replicas());
  EXPECT_TRUE(torch::equal(strategy_.reduce(Reduction::kSum, values), torch::full({2}, n * (n + 1) / 2)));
  EXPECT_TRUE(torch::allclose(strategy_.reduce(Reduction::kMean, values), torch::full({2}, (n + 1) / 2)));
  EXPECT_TRUE(torch::equal(strategy_.reduce(Reduction::kMax, values, std::nullopt), torch::full({2}, n)));
  const auto whole = strategy_.per_replica([](ReplicaId r) { return torch::full({}, r.value(), torch::kLong); });
  EXPECT_EQ(strategy_.reduce(Reduction::kSum, whole).scalar_type(), torch::kLong);
  EXPECT_EQ(strategy_.reduce(Reduction::kMean, whole).scalar_type(), torch::kDouble);
}

TEST_P(StrategyOf, ReduceOverAnAxisIsTheTrueMeanAlsoOfUnevenAndEmptyParts) {
  // Replica r has r rows, the first none.
  const auto values = strategy_.per_replica([&](ReplicaId r) {
    return torch::arange(r * 2, dtype(torch::kDouble)).view({r, 2}) + r.value();
  });
  std::vector<Tensor> parts(values.begin(), values.end());
  const Tensor all = torch::cat(parts, 0);
  if (all.size(0) == 0) GTEST_SKIP() << "one replica with no rows has no mean";
  EXPECT_TRUE(torch::allclose(strategy_.reduce(Reduction::kSum, values, 0), all.sum(0)));
  EXPECT_TRUE(torch::allclose(strategy_.reduce(Reduction::kMean, values, 0), all.mean(0)));
  EXPECT_TRUE(torch::allclose(strategy_.reduce(Reduction::kMean, values, -2), all.mean(0)));
  EXPECT_TRUE(torch::equal(strategy_.reduce(Reduction::kMin, values, 0), std::get<0>(all.min(0))));
  EXPECT_TRUE(torch::equal(strategy_.reduce(Reduction::kMax, values, 0), std::get<0>(all.max(0))));
  EXPECT_NEAR(strategy_.reduce(Reduction::kMean, values, {0, 1}).item<double>(), all.mean().item<double>(), 1e-12);
}

TEST_P(StrategyOf, ReduceOfIntegersOverAnAxis) {
  const auto values = strategy_.per_replica([](ReplicaId r) { return torch::full({3}, r + 1, torch::kInt); });
  const int64_t sum = 3 * replicas() * (replicas() + 1) / 2;
  EXPECT_EQ(strategy_.reduce(Reduction::kSum, values, 0).item<int64_t>(), sum);
  EXPECT_EQ(strategy_.reduce(Reduction::kSum, values, 0).scalar_type(), torch::kInt);
  const Tensor mean = strategy_.reduce(Reduction::kMean, values, 0);
  EXPECT_EQ(mean.scalar_type(), torch::kDouble);
  EXPECT_DOUBLE_EQ(mean.item<double>(), static_cast<double>(sum) / static_cast<double>(3 * replicas()));
}

TEST_P(StrategyOf, GatherJoinsUnevenPartsInReplicaOrder) {
  const auto values = strategy_.per_replica([](ReplicaId r) { return torch::full({r + 1, 2}, r.value()); });
  std::vector<Tensor> parts(values.begin(), values.end());
  EXPECT_TRUE(torch::equal(strategy_.gather(values), torch::cat(parts, 0)));
  const auto columns = strategy_.per_replica([](ReplicaId r) { return torch::full({2, 1}, r.value()); });
  EXPECT_EQ(strategy_.gather(columns, -1).sizes(), (std::vector<int64_t>{2, replicas()}));
}

TEST_P(StrategyOf, MisuseOfReduceAndGatherIsNamed) {
  const auto uneven = strategy_.per_replica([](ReplicaId r) { return torch::ones({r + 1}); });
  const auto plain = strategy_.per_replica([](ReplicaId) { return torch::ones({2}); });
  if (replicas() > 1) {
    expect_error<UsageError>([&] { strategy_.reduce(Reduction::kSum, uneven); }, "LS-NOT-ALIKE",
                             {"Strategy::reduce", "Float [1]", "replica 0", "Float [2]", "replica 1"});
    const auto mixed =
        strategy_.per_replica([](ReplicaId r) { return torch::ones({2}, r == 0 ? torch::kFloat : torch::kInt); });
    expect_error<UsageError>([&] { strategy_.reduce(Reduction::kSum, mixed); }, "LS-NOT-ALIKE",
                             {"Strategy::reduce", "Float [2]", "replica 0", "Int [2]", "replica 1"});
    expect_error<UsageError>([&] { strategy_.gather(mixed); }, "LS-NOT-ALIKE",
                             {"Strategy::gather", "Float [2]", "replica 0", "Int [2]", "replica 1"});
    const auto columns = strategy_.per_replica([](ReplicaId r) { return torch::ones({2, r + 1}); });
    expect_error<UsageError>([&] { strategy_.gather(columns, 0); }, "LS-NOT-ALIKE",
                             {"Strategy::gather", "Float [2, 1]", "replica 0", "Float [2, 2]", "replica 1"});
  }
  expect_error<UsageError>([&] { strategy_.reduce(Reduction::kSum, plain, 1); }, "LS-AXIS",
                           {"Strategy::reduce", "axis 1", "1 dimension"});
  expect_error<UsageError>([&] { strategy_.reduce(Reduction::kSum, plain, -2); }, "LS-AXIS",
                           {"Strategy::reduce", "axis -2", "1 dimension"});
  expect_error<UsageError>([&] { strategy_.gather(plain, 1); }, "LS-AXIS",
                           {"Strategy::gather", "axis 1", "1 dimension"});
  const auto numbers = strategy_.per_replica([](ReplicaId) { return torch::ones({}); });
  expect_error<UsageError>([&] { strategy_.gather(numbers); }, "LS-AXIS",
                           {"Strategy::gather", "axis 0", "0 dimensions"});
  const PerReplica<Tensor> more(std::vector<Tensor>(replicas() + 1, torch::ones({1})));
  const std::string given = std::to_string(replicas() + 1) + " values";
  const std::string wanted = internal::counted(replicas(), "replica");
  expect_error<UsageError>([&] { strategy_.reduce(Reduction::kSum, more); }, "LS-PER-REPLICA-SIZE",
                           {"Strategy::reduce", given, wanted});
  const PerReplica<Tensor> undefined{std::vector<Tensor>(replicas())};
  expect_error<UsageError>([&] { strategy_.reduce(Reduction::kSum, undefined); }, "LS-NOT-DENSE",
                           {"Strategy::reduce", "undefined", "replica 0"});
  const auto empty = strategy_.per_replica([](ReplicaId) { return torch::ones({0}); });
  expect_error<UsageError>([&] { strategy_.reduce(Reduction::kMean, empty, 0); }, "LS-NO-ELEMENTS",
                           {"Strategy::reduce", "mean"});
  const std::string beyond = "replica " + std::to_string(replicas()) + " of " + std::to_string(replicas());
  expect_error<UsageError>([&] { strategy_.broadcast(replicas(), torch::ones({1})); }, "LS-REPLICA-RANGE",
                           {"Strategy::broadcast", beyond});
}

TEST_P(StrategyOf, LocalResultsOnChiefAndBroadcast) {
  EXPECT_EQ(strategy_.local_results(strategy_.per_replica([](ReplicaId r) { return r.value(); })).size(),
            static_cast<std::size_t>(replicas()));
  EXPECT_EQ(strategy_.on_chief([] { return 42; }), 42);
  EXPECT_TRUE(torch::equal(strategy_.broadcast(0, torch::ones({2})), torch::ones({2})));
  EXPECT_TRUE(strategy_.is_chief());
  EXPECT_EQ(strategy_.num_workers(), 1);
}

// An empty part: its mean loss is NaN, and nobody may notice.
TEST_P(StrategyOf, AReplicaWithAnEmptyPartCountsForNothing) {
  const auto model = strategy_.make_module([] { return testing::make_program("cnn"); });
  const auto optimizer = strategy_.make_optimizer(model, torch::optim::AdamOptions(0.01));
  const auto data = strategy_.distribute(testing::make_data("cnn", 9), {.global_batch = 3});
  for (const auto& batch : data.epoch(0)) {
    const auto losses = strategy_.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
      EXPECT_EQ(ctx.global_batch_size(), 3);
      const auto mean = model(ctx)->loss(part.input, part.target);
      const auto loss = ctx.scale_loss(mean);
      if (part.size() == 0) {
        EXPECT_EQ(loss.item<double>(), 0);
        EXPECT_TRUE(loss.requires_grad()) << "the graph is kept";
      }
      loss.backward();
      const StepInfo info = optimizer.step(ctx, {.check_finite = true});
      EXPECT_TRUE(std::isfinite(info.global_norm));
      return loss.detach();
    });
    EXPECT_TRUE(std::isfinite(strategy_.reduce(Reduction::kSum, losses).item<double>()));
  }
  for (const auto& [name, value] : model.state())
    EXPECT_TRUE(torch::isfinite(value.to(torch::kDouble)).all().item<bool>()) << name;
}

TEST_P(StrategyOf, AReplicaOfWeightZeroCountsAsZeroWhateverItsGradientHolds) {
  if (replicas() == 1) GTEST_SKIP() << "needs another replica";
  const auto v = strategy_.make_variable(torch::ones({2}), {.name = "v"});
  const auto optimizer = strategy_.make_optimizer(std::vector<Variable>{v}, torch::optim::SGDOptions(1));
  strategy_.run([&](ReplicaContext& ctx) {
    const bool empty = ctx.replica_id() == 0;
    const auto loss =
        ctx.scale_loss((v.value(ctx) * (empty ? std::nan("") : 1.0)).sum(), empty ? 0 : 1, replicas() - 1);
    loss.backward();
    if (empty) v.value(ctx).mutable_grad() = torch::full({2}, std::nan(""));
    optimizer.step(ctx);
  });
  EXPECT_TRUE(torch::equal(v.read(), torch::zeros({2})));
}

TEST_P(StrategyOf, AModuleThatRefusesOneSampleIsReportedWithReplicaSizeAndRemedy) {
  const auto model = strategy_.make_module([] { return torch::nn::BatchNorm1d(3); });
  const auto data =
      strategy_.distribute(data::from_tensors(torch::randn({replicas() * 2, 3}), torch::ones({replicas() * 2})),
                           {.global_batch = replicas()});
  for (const auto& batch : data.epoch(0)) {
    const auto step = [&](ReplicaContext& ctx, const Batch& part) { model(ctx)->forward(part.input); };
    if (replicas() == 1) {
      EXPECT_THROW(strategy_.run(batch, step), ReplicaError);
      continue;
    }
    const auto error = error_from<ReplicaError>([&] { strategy_.run(batch, step); });
    const std::string samples = "1 of " + internal::counted(replicas(), "sample");
    EXPECT_TRUE(has_value(error.what(), samples)) << error.what();
    EXPECT_TRUE(has_value(error.what(), "step 0")) << error.what();
    EXPECT_FALSE(error.remedy().empty());
  }
}

TEST_P(StrategyOf, AnErrorOfTheLibraryIsNotBlamedOnASmallPart) {
  const auto error = error_from<ReplicaError>([&] {
    strategy_.run(strategy_.split(torch::ones({replicas() + 1, 1}), torch::ones({replicas() + 1})),
                  [&](ReplicaContext&, const Batch&) { strategy_.variables(); });
  });
  EXPECT_FALSE(has_value(error.what(), "part of the batch")) << error.what();
}

TEST_P(StrategyOf, ABatchThatIsGivenWholeCountsEachOfItsSamplesOnce) {
  const Batch batch{torch::ones({4, 1}), torch::ones({4}), {}, 4};
  const auto losses =
      strategy_.run(batch, [&](ReplicaContext& ctx, const Batch& part) { return ctx.scale_loss(part.input.mean()); });
  EXPECT_NEAR(strategy_.reduce(Reduction::kSum, losses).item<double>(), 1, 1e-6);
}

TEST_P(StrategyOf, GoesThroughTenThousandEmptySteps) {
  for (int i = 0; i < 10000; ++i) strategy_.run([](ReplicaContext&) {});
  EXPECT_EQ(strategy_.step(), 10000);
}

INSTANTIATE_TEST_SUITE_P(Shapes, StrategyOf,
                         ::testing::Values(std::pair<int64_t, int>{1, 1}, std::pair<int64_t, int>{2, 2},
                                           std::pair<int64_t, int>{5, 1}, std::pair<int64_t, int>{8, 2}),
                         [](const auto& shape) {
                           return "V" + std::to_string(shape.param.first) + "D" + std::to_string(shape.param.second);
                         });

TEST(Strategy, ThousandStrategiesComeAndGo) {
  for (int i = 0; i < 1000; ++i) {
    MirroredStrategy strategy({.devices = lanes(2), .replicas = 4});
    if (i % 10 == 0) strategy.run([](ReplicaContext&) {});
  }
}

TEST(Strategy, DescribesItself) {
  MirroredStrategy strategy({.devices = lanes(2), .replicas = 4, .seed = 9});
  const std::string text = strategy.describe();
  for (const char* part : {"MirroredStrategy: 4 replicas on 2 lanes [cpu:0, cpu:1]", "1 intra-op thread", "seed 9",
                           "LibTorch", "fingerprint"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in:\n" << text;
  }
  EXPECT_NE(text.find("the number of replicas is the program's"), std::string::npos) << text;
  const Variable variable = strategy.make_variable(torch::ones({3}), {.name = "mine"});
  EXPECT_EQ(strategy.describe(), text + strategy.describe_variables());
  strategy.run([&](ReplicaContext&) { EXPECT_EQ(strategy.describe(), text); });
}

TEST(Strategy, SaysThatTheNumberOfReplicasCameFromTheMachine) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  MirroredStrategy strategy;
  set_log_sink({});
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines[0].find("because this machine has"), std::string::npos) << lines[0];
  EXPECT_NE(strategy.describe().find("this machine's number of cores"), std::string::npos);
}

TEST(Strategy, NamesCoresThatStayIdleAndTheSetting) {
  MirroredStrategy strategy({.devices = {"cpu:0"}});
  if (internal::cores_of_this_process().size() < 2) GTEST_SKIP() << "one core: none can stay idle";
  EXPECT_NE(strategy.describe().find("idle"), std::string::npos) << strategy.describe();
  EXPECT_NE(strategy.describe().find(".threads_per_replica"), std::string::npos);
}

TEST(Strategy, DoesNotAdviseMoreLanesThanReplicas) {
  if (internal::cores_of_this_process().size() < 2) GTEST_SKIP() << "one core: none can stay idle";
  const auto advises_lanes = [](const Strategy& strategy) {
    EXPECT_NE(strategy.describe().find("idle"), std::string::npos) << strategy.describe();
    return strategy.describe().find(".devices") != std::string::npos;
  };
  EXPECT_TRUE(advises_lanes(MirroredStrategy({.devices = {"cpu:0"}, .replicas = 2})));
  EXPECT_FALSE(advises_lanes(MirroredStrategy({.devices = {"cpu:0"}, .replicas = 1})));
  EXPECT_FALSE(advises_lanes(OneDeviceStrategy()));
}

TEST(MakeStrategy, KnowsStrategiesByName) {
  EXPECT_EQ(make_strategy("one-device")->num_replicas(), 1);
  EXPECT_EQ(make_strategy("mirrored", {.devices = lanes(1), .replicas = 3})->num_replicas(), 3);
  expect_error<UsageError>([] { make_strategy("mirored"); }, "LS-OPTION", {"'mirored'"});
  expect_error<UsageError>([] { make_strategy("one-device", {.devices = lanes(2)}); }, "LS-OPTION",
                           {"one-device", "2 devices"});
  expect_error<UsageError>([] { make_strategy("one-device", {.replicas = 2}); }, "LS-OPTION",
                           {"one-device", "2 replicas"});
}

TEST(MakeStrategy, RefusesSeveralWorkersForAStrategyOfOneProcess) {
  const ClusterSpec two{.jobs = {{"worker", {"127.0.0.1:4000", "127.0.0.1:4001"}}}, .job = "worker", .task = 1};
  for (const char* name : {"one-device", "mirrored", "central-storage"}) {
    expect_error<UsageError>([&] { make_strategy(name, {.cluster = two}); }, "LS-OPTION", {name, "2 workers"});
  }
  const ClusterSpec one{.jobs = {{"worker", {"127.0.0.1:4000"}}}};
  EXPECT_EQ(make_strategy("central-storage", {.cluster = one})->num_workers(), 1);
}

TEST(MakeStrategy, RefusesAnOptionThatTheStrategyDoesNotHave) {
  const auto refused = [](const char* name, const StrategyOptions& options, const char* option, const char* who) {
    expect_error<UsageError>([&] { make_strategy(name, options); }, "LS-OPTION", {name, option, who});
  };
  for (const char* name : {"one-device", "mirrored", "central-storage"}) {
    refused(name, {.engine = "tcp"}, ".engine", "multi-worker");
    refused(name, {.timeouts = {.lost = std::chrono::seconds(1)}}, ".timeouts", "multi-worker");
    refused(name, {.update_form = UpdateForm::kFactors}, ".update_form", "multi-worker");
    refused(name, {.wire = WireFormat::kBFloat16}, ".wire", "multi-worker");
  }
  for (const char* name : {"one-device", "mirrored", "multi-worker"})
    refused(name, {.storage = "cpu:1"}, ".storage", "central-storage");
  // What is as it would be without being given says nothing.
  EXPECT_EQ(make_strategy("mirrored", {.replicas = 2, .storage = "cpu", .engine = "auto"})->num_replicas(), 2);
}

TEST(OneDeviceStrategy, IsOneReplicaUnderTheSameRules) {
  OneDeviceStrategy strategy({.device = "cpu:3", .seed = 4});
  EXPECT_EQ(strategy.num_replicas(), 1);
  EXPECT_EQ(strategy.devices(), std::vector<std::string>{"cpu:3"});
  const auto result =
      strategy.run([](ReplicaContext& ctx) { return ctx.all_reduce(Reduction::kSum, torch::ones({2})); });
  EXPECT_EQ(result.size(), 1u);
  EXPECT_THROW(strategy.run([](ReplicaContext&) { throw std::runtime_error("no"); }), ReplicaError);
  expect_error<UsageError>([] { OneDeviceStrategy({.device = "cuda:0"}); }, "LS-DEVICE", {"device 'cuda:0'"});
}

}  // namespace
}  // namespace lockstep
