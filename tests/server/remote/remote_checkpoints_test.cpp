// Checkpoints of runs whose tasks are processes, read by such runs and by runs of threads.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cstdint>
#include <set>
#include <string>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/server/parameter_server.h"
#include "tests/server/remote/remote_tasks.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

using testing::expect_all_ended_well;
using testing::is_chief;
using testing::run_tasks;
using torch::Tensor;

class RemoteCheckpoints : public testing::ScratchFolder {};

TEST_F(RemoteCheckpoints, ARestoredRunGoesOnAtTheBatchOfItsNextStep) {
  // The first program saves after 4 steps, makes 3 more, and goes back to what it has saved. The second one begins
  // there.
  const auto run_all = [&](bool restores) {
    expect_all_ended_well(run_tasks(2, 1, [&](const ClusterSpec& spec) {
      ParameterServerStrategy strategy({.cluster = spec});
      const Variable sum = strategy.make_variable(torch::zeros({}), {.name = "sum", .trainable = false});
      const auto data =
          strategy.distribute(data::from_tensors(torch::arange(20).to(torch::kFloat).view({20, 1}), torch::arange(20)),
                              {.global_batch = 2});
      const auto step = strategy.step("step", [&](WorkerContext& ctx) {
        const Batch batch = data.next(ctx);
        sum.assign_add(ctx, batch.input.sum());
        return batch.input.sum().item<double>();
      });
      Checkpoint checkpoint(strategy);
      if (restores && is_chief(spec)) checkpoint.restore(path("saved"));
      int code = strategy.coordinate([&](Coordinator& coordinator) {
        EXPECT_EQ(coordinator.steps(), restores ? 4 : 0);
        for (int64_t k = coordinator.steps(); k < 7; ++k) {
          EXPECT_EQ(coordinator.schedule(step).get(), 4 * k + 1) << k;
          if (k == 3) checkpoint.save(path("saved"));
        }
      });
      if (is_chief(spec)) {
        EXPECT_EQ(sum.read().item<double>(), 91);
        checkpoint.restore(path("saved"));
      }
      code += strategy.coordinate([&](Coordinator& coordinator) {
        EXPECT_EQ(coordinator.steps(), 4);
        EXPECT_EQ(coordinator.schedule(step).get(), 17);
      });
      if (is_chief(spec)) {
        EXPECT_EQ(sum.read().item<double>(), 28 + 17);
      }
      return code;
    }));
  };
  run_all(false);
  run_all(true);
}

TEST_F(RemoteCheckpoints, RowsOfATableThatWasRestoredAloneAreSeenWhenTheyChange) {
  for (const bool restores : {false, true}) {
    expect_all_ended_well(run_tasks(1, 1, [&](const ClusterSpec& spec) {
      ParameterServerStrategy strategy({.cluster = spec});
      const auto table = strategy.make_embedding({.name = "users", .rows = 10, .dim = 1});
      const auto optimizer = strategy.make_optimizer(table, torch::optim::SGDOptions(1));
      const auto step = strategy.step("step", [&](WorkerContext& ctx) {
        table.look_up(ctx, torch::zeros({1}, torch::kLong)).sum().backward();  // the row becomes 1 less
        ctx.push();
      });
      const Checkpoint checkpoint(strategy);
      if (restores && is_chief(spec)) checkpoint.restore(path("table"), {.only = {"users"}});
      return strategy.coordinate([&](Coordinator& coordinator) {
        const auto row = [&] { return table.read(torch::zeros({1}, torch::kLong)).item<double>(); };
        const double before = row();
        for (int i = 0; i < 5; ++i) {
          coordinator.schedule(step);
          coordinator.join();
          EXPECT_NEAR(row(), before - i - 1, 1e-5) << "float32, " << (restores ? "restored" : "new");
        }
        if (!restores) checkpoint.save(path("table"));
      });
    }));
  }
}

/// Trains in step up to a step, over three epochs of four batches, and saves after the steps of `saves`.
struct InStepProgram {
  int64_t end = 24;
  std::set<int64_t> saves = {};
  std::string restored = {};  // a folder
  std::string saved = {};

  /// The weights; of other tasks than the chief an undefined tensor.
  int operator()(const ParameterServerOptions& options, bool is_chief_task, Tensor& weights) const {
    ParameterServerStrategy strategy(options);
    const Variable weight = strategy.make_variable(torch::ones({1}), {.name = "weight"});
    const auto optimizer = strategy.make_optimizer({weight}, torch::optim::SGDOptions(0.01).momentum(0.5));
    const auto data =
        strategy.distribute(data::from_tensors(torch::arange(8).to(torch::kFloat).view({8, 1}), torch::arange(8)),
                            {.global_batch = 2, .shuffle = true});
    const auto step = strategy.step("step", [&](WorkerContext& ctx) {
      const Batch batch = data.next(ctx);
      ctx.scale_loss((weight.value(ctx) * batch.input).square().mean() * 0.1).backward();
      ctx.push();
    });
    const Checkpoint checkpoint(strategy);
    if (!restored.empty() && is_chief_task) checkpoint.restore(restored);
    const int code = strategy.coordinate([&](Coordinator& coordinator) {
      for (int64_t k = coordinator.steps(); k < end; ++k) {
        coordinator.schedule(step);
        if (saves.contains(k + 1)) checkpoint.save(saved);
      }
    });
    if (is_chief_task) weights = weight.read();
    return code;
  }

  Tensor on_threads() const {
    Tensor weights;
    EXPECT_EQ((*this)({.staleness = 0, .workers = 2}, true, weights), 0);
    return weights;
  }

  Tensor on_processes() const {
    Tensor weights;
    expect_all_ended_well(run_tasks(2, 1, [&](const ClusterSpec& spec) {
      Tensor here;
      const int code = (*this)({.cluster = spec, .staleness = 0}, is_chief(spec), here);
      if (is_chief(spec)) weights = here;
      return code;
    }));
    return weights;
  }
};

TEST_F(RemoteCheckpoints, ThreadsGoOnAtTheBatchWhereProcessesStopped) {
  const Tensor whole = InStepProgram().on_threads();
  EXPECT_TRUE(InStepProgram().on_processes().equal(whole));
  InStepProgram{.end = 12, .saves = {12}, .saved = path("processes")}.on_processes();
  InStepProgram{.end = 12, .saves = {12}, .saved = path("threads")}.on_threads();
  for (const char* folder : {"processes", "threads"}) {
    const InStepProgram rest{.restored = path(folder)};
    EXPECT_TRUE(rest.on_threads().equal(whole)) << folder;
    EXPECT_TRUE(rest.on_processes().equal(whole)) << folder;
  }
}

TEST_F(RemoteCheckpoints, ASaveWithinARoundChangesNothing) {
  const Tensor whole = InStepProgram().on_threads();
  const InStepProgram saving{.saves = {3, 5, 9}, .saved = path("within")};
  EXPECT_TRUE(saving.on_threads().equal(whole));
  EXPECT_TRUE(saving.on_processes().equal(whole));
  EXPECT_TRUE(InStepProgram{.restored = path("within")}.on_threads().equal(whole));
  EXPECT_TRUE(InStepProgram{.restored = path("within")}.on_processes().equal(whole));
}

}  // namespace
}  // namespace lockstep
