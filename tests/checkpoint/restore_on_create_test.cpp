// What is made after a restore gets its values when it is made.
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include <filesystem>

#include "tests/checkpoint/training.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using testing::expect_error;
using testing::OneTraining;
using testing::Training;

using Names = std::vector<std::string>;

class RestoreOnCreate : public testing::ScratchFolder {};

TEST_F(RestoreOnCreate, AProgramMadeAfterTheRestoreIsTheOneThatWasSaved) {
  OneTraining first;
  first.training.steps(4);
  first.training.checkpoint().save(path("one"));
  MirroredStrategy strategy({.devices = testing::lanes(2), .replicas = 3, .seed = 5});
  const Checkpoint early(strategy);
  const RestoreInfo info = early.restore(path("one"), {.restore_on_create = true});
  EXPECT_EQ(info.step, 4);
  EXPECT_EQ(strategy.step(), 4);
  EXPECT_EQ(early.waiting().size(), info.unexpected.size());
  Training second(strategy);  // module, optimizer, average, variable, data sets and values: all of them now
  EXPECT_EQ(early.waiting(), Names{});
  EXPECT_EQ(second.digest(), first.training.digest());
  first.training.steps(5);
  second.steps(5);
  EXPECT_EQ(second.digest(), first.training.digest());
}

TEST_F(RestoreOnCreate, OnAnotherNumberOfWorkersToo) {
  OneTraining first(4, 1, 3);  // the seed of run_workers
  first.training.steps(3);
  first.training.checkpoint().save(path("one"));
  first.training.steps(3);
  const auto expected = first.training.model().state();
  for (const int64_t workers : {2, 4}) {
    const auto best = testing::run_workers({.workers = workers, .replicas = 4}, [&](Strategy& strategy) {
      const Checkpoint early(strategy);
      early.restore(path("one"), {.restore_on_create = true});
      Training second(strategy);
      EXPECT_EQ(early.waiting(), Names{});
      second.steps(3);
      for (const auto& [name, value] : second.model().state()) EXPECT_TRUE(value.equal(expected.at(name))) << name;
      return second.best;
    });
    for (const double one : best) EXPECT_EQ(one, first.training.best);
  }
}

TEST_F(RestoreOnCreate, WhatAStepMakesHasItsValueInThatStepAndAfterAFailedOne) {
  const auto step = [](MirroredStrategy& strategy, bool fails) {
    strategy.run([&](ReplicaContext& ctx) {
      const Variable count =
          ctx.make_variable("count", [] { return torch::zeros({}); }, {.aggregation = VariableAggregation::kSum});
      const Variable own = ctx.make_variable(
          "own", [] { return torch::zeros({}); },
          {.synchronization = VariableSynchronization::kOnRead, .aggregation = VariableAggregation::kSum});
      count.assign_add(ctx, torch::ones({}));
      own.assign_add(ctx, torch::full({}, static_cast<double>(ctx.replica_id().value())));
      if (fails) throw std::runtime_error("fails");
    });
  };
  MirroredStrategy first({.devices = testing::lanes(1), .replicas = 2});
  step(first, false);
  step(first, false);
  Checkpoint(first).save(path("one"));
  step(first, false);
  MirroredStrategy second({.devices = testing::lanes(1), .replicas = 2});
  const Checkpoint checkpoint(second);
  checkpoint.restore(path("one"), {.restore_on_create = true});
  EXPECT_EQ(checkpoint.waiting(), (Names{"count", "own"}));
  EXPECT_THROW(step(second, true), ReplicaError);
  step(second, false);
  EXPECT_EQ(testing::digest_of(second), testing::digest_of(first));
}

TEST_F(RestoreOnCreate, WhatDoesNotFitIsNotMadeAndMayBeMadeRightly) {
  OneTraining run;
  run.training.steps(2);
  run.training.checkpoint().save(path("one"));
  MirroredStrategy strategy({.devices = testing::lanes(1), .replicas = 3, .seed = 5});
  Checkpoint checkpoint(strategy);
  checkpoint.restore(path("one"), {.restore_on_create = true});
  const std::size_t waiting = checkpoint.waiting().size();
  const auto make = [&](int64_t width) {
    return strategy.make_module([width] {
      return torch::nn::Sequential(torch::nn::Linear(3, 6), torch::nn::BatchNorm1d(6), torch::nn::Dropout(0.3),
                                   torch::nn::Linear(6, width));
    });
  };
  expect_error<UsageError>([&] { make(2); }, "LS-CHECKPOINT-MISFIT",
                           {"model.3.weight", "Float [1, 6]", "Float [2, 6]"});
  expect_error<UsageError>([&] { strategy.make_variable(torch::zeros({}, torch::kLong), {.name = "seen"}); },
                           "LS-CHECKPOINT-MISFIT", {"seen", "on-read", "mirrored"});
  EXPECT_TRUE(strategy.variables().empty());
  EXPECT_EQ(checkpoint.waiting().size(), waiting);
  expect_error<UsageError>(
      [&] {
        strategy.make_variable(torch::zeros({2}, torch::kLong), {.name = "seen",
                                                                 .synchronization = VariableSynchronization::kOnRead,
                                                                 .aggregation = VariableAggregation::kSum});
      },
      "LS-CHECKPOINT-MISFIT", {"seen", "Long []", "Long [2]"});
  const auto model = make(1);
  for (const auto& [name, value] : model.state())
    EXPECT_TRUE(value.equal(run.training.model().state().at(name))) << name;
}

TEST_F(RestoreOnCreate, AnOptimizerWhoseSlotsDoNotAllFitUsesNoneUp) {
  OneTraining run;
  run.training.steps(2);
  run.training.checkpoint().save(path("one"));
  MirroredStrategy strategy({.devices = testing::lanes(1), .replicas = 3, .seed = 5});
  const Checkpoint checkpoint(strategy);
  checkpoint.restore(path("one"), {.only = {"*exp_avg*"}, .restore_on_create = true});
  const Names waiting = checkpoint.waiting();
  ASSERT_FALSE(waiting.empty());
  const auto model = strategy.make_module([] {
    return torch::nn::Sequential(torch::nn::Linear(3, 6), torch::nn::BatchNorm1d(6), torch::nn::Dropout(0.3),
                                 torch::nn::Linear(6, 4));
  });
  expect_error<UsageError>([&] { strategy.make_optimizer(model, torch::optim::AdamWOptions(1e-2)); },
                           "LS-CHECKPOINT-MISFIT", {"model.3.weight"});
  EXPECT_EQ(checkpoint.waiting(), waiting);
}

TEST_F(RestoreOnCreate, AnAverageThatDoesNotFitUsesNoneUp) {
  const auto module = [](int64_t width) {
    return [width] { return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::Linear(4, width)); };
  };
  MirroredStrategy first({.devices = testing::lanes(1), .replicas = 1});
  const auto saved = first.make_module(module(2));
  const MovingAverage average = first.make_moving_average(saved);
  Checkpoint(first).save(path("one"));
  MirroredStrategy strategy({.devices = testing::lanes(1), .replicas = 1});
  const Checkpoint checkpoint(strategy);
  checkpoint.restore(path("one"), {.only = {"*average*"}, .restore_on_create = true});
  const Names waiting = checkpoint.waiting();
  const auto model = strategy.make_module(module(3));
  expect_error<UsageError>([&] { strategy.make_moving_average(model); }, "LS-CHECKPOINT-MISFIT",
                           {"model.1.weight/average"});
  EXPECT_EQ(checkpoint.waiting(), waiting);
}

TEST_F(RestoreOnCreate, OptimizersOfOneVariableAreMadeInTheirOrder) {
  const auto make = [](Strategy& strategy, const Variable& variable, const char* name) {
    return strategy.make_optimizer(std::vector<Variable>{variable}, torch::optim::AdamOptions(0.1), {.name = name});
  };
  const auto step = [](Strategy& strategy, const Variable& variable, const Optimizer& optimizer) {
    strategy.run([&](ReplicaContext& ctx) {
      variable.value(ctx).pow(2).sum().backward();
      optimizer.step(ctx);
    });
  };
  MirroredStrategy first({.devices = testing::lanes(1), .replicas = 1});
  const Variable a = first.make_variable(torch::ones({2}), {.name = "a"});
  const Optimizer one = make(first, a, "one");
  const Optimizer two = make(first, a, "two");
  for (int i = 0; i < 3; ++i) step(first, a, one);
  step(first, a, two);
  Checkpoint(first).save(path("one"));
  MirroredStrategy strategy({.devices = testing::lanes(1), .replicas = 1});
  const Checkpoint checkpoint(strategy);
  checkpoint.restore(path("one"), {.restore_on_create = true});
  const Variable same = strategy.make_variable(torch::zeros({2}), {.name = "a"});
  const Names waiting = checkpoint.waiting();
  expect_error<UsageError>([&] { make(strategy, same, "two"); }, "LS-CHECKPOINT-MISFIT", {"a/two/exp_avg", "'two'"});
  EXPECT_EQ(checkpoint.waiting(), waiting);
  const Optimizer again_one = make(strategy, same, "one");
  const Optimizer again_two = make(strategy, same, "two");
  EXPECT_EQ(checkpoint.waiting(), Names{});
  EXPECT_EQ(testing::digest_of(strategy), testing::digest_of(first));
}

TEST_F(RestoreOnCreate, AStepCannotAskWhatWaits) {
  MirroredStrategy strategy({.devices = testing::lanes(1), .replicas = 1});
  const Checkpoint checkpoint(strategy);
  expect_error<ReplicaError>([&] { strategy.run([&](ReplicaContext&) { checkpoint.waiting(); }); }, "LS-REPLICA");
}

TEST_F(RestoreOnCreate, AWaitingValueIsNeverLostWithoutAWord) {
  OneTraining run;
  run.training.checkpoint().save(path("one"));
  MirroredStrategy strategy({.devices = testing::lanes(1), .replicas = 3, .seed = 5});
  Checkpoint checkpoint(strategy);
  checkpoint.restore(path("one"), {.restore_on_create = true});
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel level, std::string_view text) {
    if (level == LogLevel::kWarning) warnings.emplace_back(text);
  });
  checkpoint.save(path("two"));
  set_log_sink({});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings.front().find("best"), std::string::npos);
  checkpoint.restore(path("two"));  // the next restore ends the waiting
  EXPECT_EQ(checkpoint.waiting(), Names{});
  const Variable seen = strategy.make_variable(torch::ones({}), {.name = "seen"});
  EXPECT_TRUE(seen.read().equal(torch::ones({})));
}

TEST_F(RestoreOnCreate, APartByPatternWaitsAlone) {
  OneTraining run;
  run.training.steps(2);
  run.training.checkpoint().save(path("one"));
  MirroredStrategy strategy({.devices = testing::lanes(1), .replicas = 2, .seed = 9});
  const Checkpoint checkpoint(strategy);
  checkpoint.restore(path("one"), {.only = {"model.0.*"}, .restore_on_create = true});
  EXPECT_EQ(strategy.step(), 0);
  const auto model = strategy.make_module([] {
    return torch::nn::Sequential(torch::nn::Linear(3, 6), torch::nn::BatchNorm1d(6), torch::nn::Dropout(0.3),
                                 torch::nn::Linear(6, 4));
  });
  EXPECT_TRUE(model.state().at("0.weight").equal(run.training.model().state().at("0.weight")));
  EXPECT_EQ(model.state().at("3.weight").size(0), 4);
}

}  // namespace
}  // namespace lockstep
