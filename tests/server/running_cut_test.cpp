// Checkpoints and reads while scheduled steps run: each is one state of the servers, of the chief and of the data.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/server/parameter_server.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using testing::expect_error;
using torch::Tensor;

/// Each step takes 1 from row 0 and from row -step, and adds 1 to a counter.
struct Counting {
  explicit Counting(std::optional<int64_t> staleness, int64_t workers = 3)
      : strategy({.staleness = staleness, .workers = workers, .seed = 7}),
        table(strategy.make_embedding({.name = "rows", .dim = 4, .initial = 0.0})),
        rows(strategy.make_optimizer(table, torch::optim::SGDOptions(1.0))),
        counter(strategy.make_variable(torch::zeros({}), {.name = "counter", .trainable = false})),
        checkpoint(strategy) {}

  /// In a step.
  void count(WorkerContext& ctx) const {
    table.look_up(ctx, torch::tensor({int64_t{0}, -ctx.step() - 1})).sum().backward();
    counter.assign_add(ctx, torch::ones({}));
    ctx.push({.loss_scaled_by_hand = true});
  }
  int64_t counted() const { return counter.read().item<int64_t>(); }

  ParameterServerStrategy strategy;
  Embedding table;
  RowsOptimizer rows;
  Variable counter;
  Checkpoint checkpoint;
};

/// Samples that are `first` and the numbers behind it.
Dataset numbered(int64_t count, int64_t first) {
  const Tensor numbers = torch::arange(first, first + count).view({count, 1});
  return data::from_tensors(numbers, numbers);
}

class RunningCut : public testing::ScratchFolder {};

class RunningCuts : public testing::ScratchFolder, public ::testing::WithParamInterface<std::optional<int64_t>> {};

TEST_P(RunningCuts, TableCounterAndStepsAgree) {
  Counting run(GetParam());
  const auto step = run.strategy.step("count", [&](WorkerContext& ctx) { run.count(ctx); });
  std::vector<std::string> saved;
  run.strategy.coordinate([&](Coordinator& coordinator) {
    CheckpointManager manager(run.checkpoint, {.directory = path("managed"), .keep = 100});
    for (int k = 0; k < 6; ++k) {
      for (int i = 0; i < 60; ++i) coordinator.schedule(step);
      saved.push_back(path("direct" + std::to_string(k)));
      run.checkpoint.save(saved.back());
      saved.push_back(manager.save());
      int64_t others = 0;  // rows beside row 0: one for each step that counts
      double zero = 0;
      run.table.for_each([&](int64_t row, const Tensor& weights) {
        if (row == 0) zero = weights[0].item<double>();
        if (row != 0) ++others;
      });
      EXPECT_EQ(others, static_cast<int64_t>(std::lround(-zero)));
    }
  });
  EXPECT_EQ(run.counted(), 360);
  std::set<int64_t> counts;
  for (const std::string& path : saved) {
    Counting other(GetParam());
    other.checkpoint.restore(path);
    const int64_t counted = other.counted();
    counts.insert(counted);
    EXPECT_EQ(other.table.read(torch::tensor({0}))[0][0].item<double>(), -static_cast<double>(counted));
    EXPECT_EQ(other.table.size(), counted == 0 ? 0 : counted + 1);
    std::set<int64_t> rest;
    std::mutex mutex;
    const auto go_on = other.strategy.step("count", [&](WorkerContext& ctx) {
      {
        const std::lock_guard<std::mutex> lock(mutex);
        rest.insert(ctx.step());
      }
      other.count(ctx);
    });
    other.strategy.coordinate([&](Coordinator& coordinator) {
      EXPECT_EQ(coordinator.steps(), counted);
      for (int64_t k = counted; k < 361; ++k) coordinator.schedule(go_on);  // one more fills no round
      coordinator.join();
      EXPECT_EQ(coordinator.steps(), 361);
    });
    EXPECT_EQ(other.table.size(), 362) << "each number was used once";
    EXPECT_EQ(static_cast<int64_t>(rest.size()), 361 - counted);
  }
}

INSTANTIATE_TEST_SUITE_P(All, RunningCuts,
                         ::testing::Values(std::nullopt, std::optional<int64_t>(2), std::optional<int64_t>(0)));

TEST_F(RunningCut, StepsThatACutLeavesOutComeNextWithTheirBatches) {
  const auto numbers = numbered(40, 0);
  Counting run(std::nullopt, 2);
  const auto data = run.strategy.distribute(numbers, {.global_batch = 2, .name = "numbers"});
  std::promise<void> go;
  const std::shared_future<void> may_go = go.get_future().share();
  const auto step = run.strategy.step("count", [&](WorkerContext& ctx) {
    data.next(ctx);
    if (ctx.step() == 1) may_go.wait();
    run.count(ctx);
  });
  run.strategy.coordinate([&](Coordinator& coordinator) {
    coordinator.schedule(step).get();
    coordinator.schedule(step);
    for (int k = 2; k < 6; ++k) coordinator.schedule(step).get();  // one by one, so the worker that is free has each
    run.checkpoint.save(path("a"));                                // while step 1 runs
    EXPECT_EQ(coordinator.steps(), 5);
    go.set_value();
  });
  Counting other(std::nullopt, 3);
  const auto others = other.strategy.distribute(numbers, {.global_batch = 2, .name = "numbers"});
  other.checkpoint.restore(path("a"));
  std::mutex mutex;
  std::vector<std::pair<int64_t, int64_t>> taken;  // by step: the first number of its batch
  const auto go_on = other.strategy.step("count", [&](WorkerContext& ctx) {
    const Batch batch = others.next(ctx);
    {
      const std::lock_guard<std::mutex> lock(mutex);
      taken.emplace_back(ctx.step(), batch.input[0].item<int64_t>());
    }
    other.count(ctx);
  });
  other.strategy.coordinate([&](Coordinator& coordinator) {
    EXPECT_EQ(coordinator.steps(), 5);
    for (int k = 0; k < 3; ++k) coordinator.schedule(go_on);
    coordinator.join();
    EXPECT_EQ(coordinator.steps(), 8);
  });
  std::sort(taken.begin(), taken.end());
  EXPECT_EQ(taken, (std::vector<std::pair<int64_t, int64_t>>{{1, 2}, {6, 12}, {7, 14}}));
  EXPECT_EQ(other.counted(), 8);
  EXPECT_EQ(other.table.size(), 9);
}

TEST_F(RunningCut, ADataSetWithoutANameGoesOnToo) {
  const auto numbers = numbered(40, 0);
  const auto train = [&](Counting& run, const DistributedDataset& data, int64_t steps) {
    std::mutex mutex;
    std::set<int64_t> taken;
    const auto step = run.strategy.step("count" + std::to_string(steps), [&](WorkerContext& ctx) {
      const Batch batch = data.next(ctx);
      {
        const std::lock_guard<std::mutex> lock(mutex);
        for (int64_t i = 0; i < batch.size(); ++i) taken.insert(batch.input[i].item<int64_t>());
      }
      run.count(ctx);
    });
    run.strategy.coordinate([&](Coordinator& coordinator) {
      for (int64_t k = 0; k < steps; ++k) coordinator.schedule(step);
    });
    return taken;
  };
  for (const std::optional<int64_t> staleness : {std::optional<int64_t>(), std::optional<int64_t>(0)}) {
    Counting run(staleness, 2);
    const auto data = run.strategy.distribute(numbers, {.global_batch = 2, .shuffle = true});
    const auto first = train(run, data, 8);
    run.checkpoint.save(path("a"));
    const auto rest = train(run, data, 6);
    Counting other(staleness, 2);
    const auto others = other.strategy.distribute(numbers, {.global_batch = 2, .shuffle = true});
    other.checkpoint.restore(path("a"));
    EXPECT_EQ(train(other, others, 6), rest);
    run.checkpoint.restore(path("a"));
    EXPECT_EQ(train(run, data, 10).size(), static_cast<std::size_t>(staleness ? 10 : 20));
  }
}

TEST_F(RunningCut, WorkersOwnStreamsGoOnBehindWhatCountedStepsHaveTaken) {
  const auto stream_of = [](const InputContext& context) {
    return data::from_dataset(numbered(100, 1000 * context.input_pipeline_id)).batch(2);
  };
  const auto train = [&](Counting& run, int64_t steps, const std::function<void(Coordinator&)>& end) {
    std::mutex mutex;
    std::multiset<int64_t> taken;
    const auto data = run.strategy.distribute_to_workers(stream_of);
    const auto step = run.strategy.step("count", [&](WorkerContext& ctx) {
      const Batch batch = data.next(ctx);
      {
        const std::lock_guard<std::mutex> lock(mutex);
        taken.insert(batch.input[0].item<int64_t>());
      }
      run.count(ctx);
    });
    run.strategy.coordinate([&](Coordinator& coordinator) {
      for (int64_t k = 0; k < steps; ++k) coordinator.schedule(step);
      end(coordinator);
    });
    return taken;
  };
  Counting run(0, 2);
  auto taken = train(run, 6, [&](Coordinator& coordinator) {
    coordinator.join();
    run.checkpoint.save(path("a"));
  });
  Counting other(0, 2);
  other.checkpoint.restore(path("a"));
  taken.merge(train(other, 6, [](Coordinator&) {}));
  // Each stream is read in order, without a gap: how many of its batches depends on who was free.
  std::vector<int64_t> first, second;
  for (const int64_t one : taken) (one < 1000 ? first : second).push_back(one);
  EXPECT_EQ(first.size() + second.size(), 12u);
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i], static_cast<int64_t>(2 * i));
  for (std::size_t i = 0; i < second.size(); ++i) EXPECT_EQ(second[i], static_cast<int64_t>(1000 + 2 * i));
}

TEST_F(RunningCut, ARestoreInsideCoordinateBringsServersAndChiefBack) {
  Counting run(std::nullopt, 2);
  const auto step = run.strategy.step("count", [&](WorkerContext& ctx) { run.count(ctx); });
  run.strategy.coordinate([&](Coordinator& coordinator) {
    for (int k = 0; k < 10; ++k) coordinator.schedule(step);
    coordinator.join();
    run.checkpoint.save(path("a"));
    const auto last = coordinator.schedule(step);
    for (int k = 0; k < 9; ++k) coordinator.schedule(step);
    run.checkpoint.restore(path("a"));  // when these have been decided
    EXPECT_EQ(run.counted(), 10);
    EXPECT_EQ(run.table.size(), 11);
    EXPECT_EQ(coordinator.steps(), 10);
    last.get();
    for (int k = 0; k < 5; ++k) coordinator.schedule(step);
    coordinator.join();
    EXPECT_EQ(coordinator.steps(), 15);
  });
  EXPECT_EQ(run.counted(), 15);
  EXPECT_EQ(run.table.size(), 16);
}

TEST_F(RunningCut, StepsGoOnWhileACutIsWritten) {
  // The tracked function runs while values stand still; the file is written when they do not any more.
  Counting run(std::nullopt, 2);
  run.checkpoint.track(
      "note", [] { return std::string("1"); }, [](const std::string&) {});
  const auto step = run.strategy.step("count", [&](WorkerContext& ctx) { run.count(ctx); });
  run.strategy.coordinate([&](Coordinator& coordinator) {
    for (int k = 0; k < 20; ++k) coordinator.schedule(step);
    coordinator.join();
    CheckpointManager manager(run.checkpoint, {.directory = path("runs")});
    const fs::path saved = manager.save();
    for (int k = 0; k < 200; ++k) coordinator.schedule(step);
    coordinator.join();
    manager.wait();
    Counting other(std::nullopt, 2);
    other.checkpoint.track(
        "note", [] { return std::string("2"); }, [](const std::string& text) { EXPECT_EQ(text, "1"); });
    other.checkpoint.restore(saved);
    EXPECT_EQ(other.counted(), 20);
    EXPECT_EQ(other.table.size(), 21);
  });
}

TEST_F(RunningCut, ASaveInsideAStepIsRefused) {
  Counting run(std::nullopt, 2);
  const auto step = run.strategy.step("save", [&](WorkerContext&) {
    expect_error<UsageError>([&] { run.checkpoint.save(path("a")); }, "LS-INSIDE-STEP", {"Checkpoint::save"});
    expect_error<UsageError>([&] { run.checkpoint.restore(path("a")); }, "LS-INSIDE-STEP", {"Checkpoint::restore"});
  });
  run.strategy.coordinate([&](Coordinator& coordinator) { coordinator.schedule(step); });
}

TEST_F(RunningCut, AnOlderRunOfTheJobIsRefused) {
  Counting older(std::nullopt, 2);
  CheckpointManager olders(older.checkpoint, {.directory = path("runs"), .async = false});
  olders.save();
  {
    Counting newer(std::nullopt, 2);
    CheckpointManager newers(newer.checkpoint, {.directory = path("runs"), .async = false});
    expect_error<ClusterError>([&] { newers.save(); }, "LS-CHECKPOINT-LOCKED");
    fs::remove(path("runs/.lock"));  // as if the machine of the older one had lost it
    newers.restore_latest();
    newers.save();
  }
  expect_error<ClusterError>([&] { olders.save(); }, "LS-CLAIM", {"run 2", "run 1"});
  expect_error<ClusterError>([&] { olders.claim(); }, "LS-CLAIM");
  Counting third(std::nullopt, 2);
  CheckpointManager(third.checkpoint, {.directory = path("runs"), .async = false}).save();
}

}  // namespace
}  // namespace lockstep
