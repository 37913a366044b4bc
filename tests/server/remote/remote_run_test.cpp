// Training with parameter servers whose tasks talk over sockets: here each task is a thread with a strategy of its own.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/server/parameter_server.h"
#include "lockstep/strategy/kinds/mirrored.h"
#include "tests/server/remote/remote_tasks.h"
#include "tests/server/small_net.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

using testing::expect_all_ended_well;
using testing::is_chief;
using testing::run_tasks;
using testing::TaskResult;
using torch::Tensor;
using State = std::map<std::string, Tensor>;

class RemoteCounting : public ::testing::TestWithParam<std::optional<int64_t>> {};

TEST_P(RemoteCounting, CountsEachScheduledStepOnce) {
  expect_all_ended_well(run_tasks(3, 2, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec, .staleness = GetParam(), .seed = 7});
    const Variable a = strategy.make_variable(torch::zeros({2}), {.name = "a", .trainable = false});
    const Variable b = strategy.make_variable(torch::zeros({}), {.name = "b", .trainable = false});
    const auto add = strategy.step("add", [&](WorkerContext& ctx) {
      a.assign_add(ctx, torch::ones({2}));
      b.assign_add(ctx, torch::ones({}));
    });
    const int code = strategy.coordinate([&](Coordinator& coordinator) {
      for (int i = 0; i < 60; ++i) coordinator.schedule(add);
      coordinator.join();
      EXPECT_EQ(coordinator.steps(), 60);
      EXPECT_EQ(a.read()[1].item<double>(), 60);
      EXPECT_EQ(b.read().item<double>(), 60);
    });
    if (is_chief(spec)) {
      EXPECT_EQ(a.read()[0].item<double>(), 60);
    }
    return code;
  }));
}

TEST_P(RemoteCounting, PassesArgumentsAndResults) {
  expect_all_ended_well(run_tasks(2, 1, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec, .staleness = GetParam(), .seed = 7});
    const auto twice =
        strategy.step("twice", [](WorkerContext&, const Tensor& x, double factor) { return x * factor; });
    const auto sum =
        strategy.step("sum", [](WorkerContext&, const Tensor& a, const Tensor& b, const std::string& name) {
          return name + std::to_string((a + b).sum().item<int64_t>());
        });
    const auto number = strategy.step("number", [](WorkerContext& ctx) { return ctx.step(); });
    return strategy.coordinate([&](Coordinator& coordinator) {
      const RemoteValue<Tensor> a = coordinator.schedule(twice, torch::ones({3}), 2);
      const RemoteValue<Tensor> b = coordinator.schedule(twice, a, 5.0);
      EXPECT_EQ(coordinator.schedule(sum, a, b, "sum ").get(), "sum 36");
      const int64_t first = coordinator.schedule(number).get();
      std::vector<RemoteValue<int64_t>> values;
      for (int i = 0; i < 20; ++i) values.push_back(coordinator.schedule(number));
      for (const int64_t value : coordinator.get(values)) EXPECT_GT(value, first);
    });
  }));
}

TEST_P(RemoteCounting, WhatTheProgramAssignsHoldsForLaterStepsAndForNoneBefore) {
  expect_all_ended_well(run_tasks(2, 2, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec, .staleness = GetParam(), .seed = 7});
    const Variable other = strategy.make_variable(torch::zeros({3}), {.name = "other", .trainable = false});
    const Variable value = strategy.make_variable(torch::zeros({}), {.name = "value", .trainable = false});
    const auto seen = strategy.step("seen", [&](WorkerContext& ctx) { return value.value(ctx).item<double>(); });
    return strategy.coordinate([&](Coordinator& coordinator) {
      std::vector<RemoteValue<double>> before;
      std::vector<RemoteValue<double>> after;
      for (int i = 0; i < 6; ++i) before.push_back(coordinator.schedule(seen));
      value.assign(torch::full({}, 5.0));
      for (int i = 0; i < 6; ++i) after.push_back(coordinator.schedule(seen));
      for (const double one : coordinator.get(before)) EXPECT_EQ(one, 0);
      for (const double one : coordinator.get(after)) EXPECT_EQ(one, 5);
    });
  }));
}

TEST_P(RemoteCounting, TheFirstErrorHasItsTypeAndItsText) {
  expect_all_ended_well(run_tasks(2, 2, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec, .staleness = GetParam(), .seed = 7});
    const Variable count = strategy.make_variable(torch::zeros({}), {.name = "count", .trainable = false});
    const auto step = strategy.step("step", [&](WorkerContext& ctx, bool fails) {
      if (ctx.step() == 4 && fails) throw std::invalid_argument("bad sample");
      count.assign_add(ctx, torch::ones({}));
    });
    return strategy.coordinate([&](Coordinator& coordinator) {
      try {
        for (int i = 0; i < 12; ++i) coordinator.schedule(step, true);
        coordinator.join();
        ADD_FAILURE() << "no error came";
      } catch (const ReplicaError& error) {
        EXPECT_EQ(error.step(), 4);
        try {
          std::rethrow_if_nested(error);
        } catch (const std::invalid_argument& nested) {
          EXPECT_STREQ(nested.what(), "bad sample");
        }
      }
      for (int i = 0; i < 4; ++i) coordinator.schedule(step, false);
      coordinator.join();
      EXPECT_EQ(count.read().item<int64_t>(), coordinator.steps());
    });
  }));
}

INSTANTIATE_TEST_SUITE_P(Staleness, RemoteCounting, ::testing::Values(std::nullopt, 0, 2), [](const auto& one) {
  return one.param ? "Of" + std::to_string(*one.param) : std::string("Unbounded");
});

/// The same program on any strategy with parameter servers; what the chief has at the end.
State trained(const ParameterServerOptions& options, int64_t steps, const StepOptions& step_options, int* code) {
  ParameterServerStrategy strategy(options);
  const auto model = strategy.make_module([] { return std::make_shared<testing::SmallNet>(); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(0.01));
  const auto data = strategy.distribute(testing::some_samples(50), {.global_batch = 8, .shuffle = true});
  const auto train = strategy.step("train", [&](WorkerContext& ctx) {
    const Batch part = data.next(ctx);
    ctx.scale_loss(torch::nn::functional::cross_entropy(model(ctx)->forward(part.input), part.target)).backward();
    ctx.push(step_options);
  });
  *code = strategy.coordinate([&](Coordinator& coordinator) {
    for (int64_t i = 0; i < steps; ++i) {
      if (i == steps / 2) optimizer.set_learning_rate(0.005);
      coordinator.schedule(train);
    }
  });
  State all = model.state();
  all.merge(optimizer.state());
  return all;
}

State trained_by_tasks(ParameterServerOptions options, int64_t workers, int64_t servers, int64_t steps,
                       const StepOptions& step_options = {}) {
  State state;
  expect_all_ended_well(run_tasks(workers, servers, [&](const ClusterSpec& spec) {
    ParameterServerOptions mine = options;
    mine.cluster = spec;
    int code = -1;
    State all = trained(mine, steps, step_options, &code);
    if (is_chief(spec)) state = std::move(all);
    return code;
  }));
  return state;
}

State trained_by_threads(ParameterServerOptions options, int64_t workers, int64_t steps,
                         const StepOptions& step_options = {}) {
  options.cluster = ClusterSpec();
  options.workers = workers;
  int code = -1;
  return trained(options, steps, step_options, &code);
}

void expect_equal(const State& a, const State& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, value] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_TRUE(torch::equal(value, b.at(name))) << name;
  }
}

TEST(RemoteInStep, TasksHaveTheBitsOfThreads) {
  for (const int64_t workers : {1, 2, 3}) {
    const State threads = trained_by_threads({.staleness = 0, .seed = 7}, workers, 6 * workers);
    for (const int64_t servers : {1, 2}) {
      expect_equal(trained_by_tasks({.staleness = 0, .seed = 7}, workers, servers, 6 * workers), threads);
    }
  }
}

TEST(RemoteInStep, OneServerClipsWithTheBitsOfThreads) {
  const StepOptions clip{.clip_global_norm = 0.05};
  expect_equal(trained_by_tasks({.staleness = 0, .seed = 7}, 2, 1, 12, clip),
               trained_by_threads({.staleness = 0, .seed = 7}, 2, 12, clip));
}

TEST(RemoteInStep, SeveralServersClipByTheNormOfAll) {
  const StepOptions clip{.clip_global_norm = 0.05};
  for (const std::optional<int64_t> staleness : {std::optional<int64_t>(0), std::optional<int64_t>()}) {
    const int64_t workers = staleness ? 2 : 1;  // otherwise the order of steps depends on timing
    const State tasks = trained_by_tasks({.staleness = staleness, .seed = 7}, workers, 2, 12, clip);
    const State threads = trained_by_threads({.staleness = staleness, .seed = 7}, workers, 12, clip);
    ASSERT_EQ(tasks.size(), threads.size());
    for (const auto& [name, value] : tasks) EXPECT_TRUE(torch::allclose(value, threads.at(name), 1e-4, 1e-6)) << name;
  }
}

TEST(RemoteAsynchronous, OneWorkerHasTheBitsOfThreads) {
  expect_equal(trained_by_tasks({.seed = 7}, 1, 2, 14), trained_by_threads({.seed = 7}, 1, 14));
}

/// Trains a table of rows; the rows of all ids at the end, and how many are kept.
std::pair<Tensor, int64_t> table_of(const ParameterServerOptions& options, int* code) {
  ParameterServerStrategy strategy(options);
  const auto model = strategy.make_module([] { return std::make_shared<testing::SmallNet>(); });
  const auto table = strategy.make_embedding({.name = "users", .rows = 1000, .dim = 6});
  const auto optimizer = strategy.make_optimizer(model, torch::optim::AdagradOptions(0.05));
  const auto rows_optimizer = strategy.make_optimizer(table, torch::optim::AdagradOptions(0.05));
  const auto train = strategy.step("train", [&](WorkerContext& ctx) {
    const Tensor ids = torch::arange(10).mul(37).add(ctx.step() * 11).remainder(1000);
    const Tensor rows = table.look_up(ctx, ids);
    const Tensor loss = model(ctx)->forward(rows).square().mean();
    (loss * 0.5).backward();
    ctx.push({.loss_scaled_by_hand = true});
  });
  *code = strategy.coordinate([&](Coordinator& coordinator) {
    for (int64_t i = 0; i < 20; ++i) coordinator.schedule(train);
  });
  return {table.read(torch::arange(1000)), table.size()};
}

TEST(RemoteTables, RowsOnSeveralServersHaveTheBitsOfThreads) {
  int code = -1;
  const auto threads = table_of({.cluster = ClusterSpec(), .staleness = 0, .workers = 2, .seed = 7}, &code);
  std::pair<Tensor, int64_t> tasks;
  expect_all_ended_well(run_tasks(2, 3, [&](const ClusterSpec& spec) {
    int mine = -1;
    if (!is_chief(spec)) {
      try {
        table_of({.cluster = spec, .staleness = 0, .seed = 7}, &mine);
      } catch (const InternalError&) {  // a server has only its rows
      }
      return mine;
    }
    tasks = table_of({.cluster = spec, .staleness = 0, .seed = 7}, &mine);
    return mine;
  }));
  EXPECT_EQ(tasks.second, threads.second);
  EXPECT_TRUE(torch::equal(tasks.first, threads.first));
}

TEST(RemoteRun, CoordinatesAgainWhereItEnded) {
  expect_all_ended_well(run_tasks(2, 1, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec});
    const Variable counter = strategy.make_variable(torch::zeros({}), {.name = "c", .trainable = false});
    const auto step = strategy.step("step", [&](WorkerContext& ctx) {
      counter.assign_add(ctx, torch::ones({}));
      return ctx.step();
    });
    int code = 0;
    for (int64_t run = 0; run < 3; ++run) {
      code += strategy.coordinate([&](Coordinator& coordinator) {
        EXPECT_EQ(coordinator.steps(), 2 * run);
        EXPECT_EQ(coordinator.schedule(step).get(), 2 * run);
        EXPECT_EQ(coordinator.schedule(step).get(), 2 * run + 1);
      });
    }
    if (is_chief(spec)) {
      EXPECT_EQ(counter.read().item<double>(), 6);
    }
    return code;
  }));
}

TEST(RemoteRun, WhatTheChiefThrowsEndsTheOtherTasksAsIfTheyHadLostIt) {
  const auto results = run_tasks(2, 1, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec});
    return strategy.coordinate([](Coordinator&) { throw std::out_of_range("mine"); });
  });
  EXPECT_EQ(results[0].error, "mine");
  for (std::size_t i = 1; i < results.size(); ++i) EXPECT_EQ(results[i].code, 75) << results[i].error;
}

TEST(RemoteRun, BFloat16RoundsEachGradientAndAddsInFloat32) {
  expect_all_ended_well(run_tasks(2, 2, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec, .wire = WireFormat::kBFloat16});
    const Variable weight = strategy.make_variable(torch::zeros({3}), {.name = "w"});
    const Variable wide = strategy.make_variable(torch::zeros({3}, torch::kDouble), {.name = "wide"});
    const Embedding table = strategy.make_embedding({.name = "t", .rows = 4, .dim = 1, .initial = 0.0});
    const auto optimizer = strategy.make_optimizer({weight, wide}, torch::optim::SGDOptions(1.0));
    const auto rows = strategy.make_optimizer(table, torch::optim::SGDOptions(1.0));
    const Tensor gradient = torch::tensor({1.01F, 3.1415927F, -0.1F});
    const auto step = strategy.step("step", [&](WorkerContext& ctx) {
      const Tensor row = table.look_up(ctx, torch::zeros({1}, torch::kLong));
      ((weight.value(ctx) * gradient).sum() + row.sum() * 1.01 + (wide.value(ctx) * gradient).sum()).backward();
      ctx.push();
    });
    return strategy.coordinate([&](Coordinator& coordinator) {
      for (int k = 0; k < 3; ++k) coordinator.schedule(step);
      coordinator.join();
      const auto three_of = [](const Tensor& one) { return -(one + one + one); };
      const auto rounded = [](const Tensor& one) { return one.to(torch::kBFloat16).to(torch::kFloat); };
      EXPECT_TRUE(torch::equal(weight.read(), three_of(rounded(gradient)))) << weight.read();
      EXPECT_TRUE(torch::equal(wide.read(), three_of(gradient.to(torch::kDouble)))) << wide.read();
      EXPECT_TRUE(torch::equal(table.read(torch::zeros({1}, torch::kLong)).flatten(),
                               three_of(rounded(torch::tensor({1.01F})))));
    });
  }));
}

TEST(RemoteRun, WhatDoesNotTravelIsAnErrorOfItsStepOrOfItsScheduling) {
  expect_all_ended_well(run_tasks(1, 1, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec});
    const auto odd = strategy.step(
        "odd", [](WorkerContext&) { return torch::quantize_per_tensor(torch::ones({2}), 0.1, 0, torch::kQInt8); });
    const auto even = strategy.step("even", [](WorkerContext&) { return 2; });
    const auto sum = strategy.step("sum", [](WorkerContext&, const Tensor& x) { return x.sum().item<double>(); });
    return strategy.coordinate([&](Coordinator& coordinator) {
      EXPECT_THROW(coordinator.schedule(odd).get(), ReplicaError);
      const Tensor quantized = torch::quantize_per_tensor(torch::ones({2}), 0.1, 0, torch::kQInt8);
      testing::expect_error<UsageError>([&] { coordinator.schedule(sum, quantized); }, "LS-STEP-VALUE", {"QInt8"});
      testing::expect_error<UsageError>([&] { coordinator.schedule(sum, torch::eye(2).to_sparse_csr()); },
                                        "LS-STEP-VALUE", {"SparseCsr"});
      EXPECT_EQ(coordinator.schedule(even).get(), 2);
    });
  }));
}

TEST(RemoteRun, AStepThatPushesAfterItWasCancelledLeavesItsWorkerAlive) {
  std::atomic<bool> has_begun = false;
  std::atomic<bool> may_push = false;
  expect_all_ended_well(run_tasks(1, 1, [&](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec});
    const Variable counter = strategy.make_variable(torch::zeros({}), {.name = "c", .trainable = false});
    const auto step = strategy.step("step", [&](WorkerContext& ctx) {
      counter.assign_add(ctx, torch::ones({}));
      has_begun = true;
      has_begun.notify_all();
      may_push.wait(false);
      return int64_t{7};
    });
    return strategy.coordinate([&](Coordinator& coordinator) {
      auto late = coordinator.schedule(step);
      has_begun.wait(false);
      coordinator.cancel();
      EXPECT_THROW(late.get(), CancelledError);
      may_push = true;
      may_push.notify_all();
      EXPECT_EQ(coordinator.schedule(step).get(), 7);
      EXPECT_EQ(counter.read().item<double>(), 1);
    });
  }));
}

TEST(RemoteRun, SparseTensorsAreArguments) {
  expect_all_ended_well(run_tasks(1, 1, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec});
    const auto step =
        strategy.step("step", [&](WorkerContext&, const Tensor& given) { return given.to_dense().sum(); });
    return strategy.coordinate([&](Coordinator& coordinator) {
      EXPECT_EQ(coordinator.schedule(step, torch::eye(3).to_sparse()).get().item<double>(), 3);
      testing::expect_error<UsageError>([&] { coordinator.schedule(step, torch::eye(3).to_sparse_csr()); },
                                        "LS-STEP-VALUE", {"SparseCsr", "to_dense()"});
    });
  }));
}

TEST(RemoteRun, WorkersHaveStreamsOfTheirOwn) {
  std::mutex mutex;
  std::multiset<double> seen;
  expect_all_ended_well(run_tasks(2, 1, [&](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec});
    const auto data = strategy.distribute_to_workers([](const InputContext& context) {
      return data::from_tensors(torch::arange(12).to(torch::kFloat).view({12, 1}), torch::arange(12))
          .shard(context.num_input_pipelines, context.input_pipeline_id);
    });
    const auto step = strategy.step("step", [&](WorkerContext& ctx) {
      const Batch batch = data.next(ctx);
      const std::lock_guard<std::mutex> lock(mutex);
      for (int64_t i = 0; i < batch.size(); ++i) seen.insert(batch.input[i][0].item<double>());
    });
    return strategy.coordinate([&](Coordinator& coordinator) {
      EXPECT_THROW(
          {
            for (int i = 0; i < 1000; ++i) {
              coordinator.schedule(step);
              coordinator.join();
            }
          },
          EndOfStream);
    });
  }));
  EXPECT_EQ(seen.size(), 12);
}

}  // namespace
}  // namespace lockstep
