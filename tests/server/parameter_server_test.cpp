// Training with parameter servers whose tasks are threads of one process.
#include "lockstep/server/parameter_server.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
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
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/strategy/kinds/mirrored.h"
#include "tests/server/small_net.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using torch::Tensor;

/// Adds 1 to a counter in each step, on `workers` threads.
class Counting : public ::testing::TestWithParam<std::optional<int64_t>> {
 protected:
  ParameterServerStrategy strategy_{{.staleness = GetParam(), .workers = 3, .seed = 7}};
  Variable counter_ = strategy_.make_variable(torch::zeros({2}), {.name = "counter", .trainable = false});
};

TEST_P(Counting, CountsEachScheduledStepOnce) {
  const auto add = strategy_.step("add", [&](WorkerContext& ctx) { counter_.assign_add(ctx, torch::ones({2})); });
  const int code = strategy_.coordinate([&](Coordinator& coordinator) {
    for (int i = 0; i < 100; ++i) coordinator.schedule(add);
    coordinator.join();
    EXPECT_EQ(coordinator.steps(), 100);
    EXPECT_TRUE(coordinator.done());
  });
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(torch::equal(counter_.read(), torch::full({2}, 100.0F)));
}

TEST_P(Counting, GivesTheResultsOfStepsByTheirNumbers) {
  const auto number = strategy_.step("number", [](WorkerContext& ctx) { return ctx.step(); });
  strategy_.coordinate([&](Coordinator& coordinator) {
    std::vector<RemoteValue<int64_t>> values;
    for (int i = 0; i < 30; ++i) values.push_back(coordinator.schedule(number));
    std::vector<int64_t> expected(30);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(coordinator.get(values), expected);
  });
}

TEST_P(Counting, PassesArgumentsAndResultsOfEarlierSteps) {
  const auto twice = strategy_.step("twice", [](WorkerContext&, const Tensor& x, double factor) { return x * factor; });
  const auto sum = strategy_.step("sum", [](WorkerContext&, const Tensor& a, const Tensor& b, const std::string& name) {
    return name + std::to_string((a + b).sum().item<int64_t>());
  });
  strategy_.coordinate([&](Coordinator& coordinator) {
    const RemoteValue<Tensor> a = coordinator.schedule(twice, torch::ones({3}), 2.0);
    const RemoteValue<Tensor> b = coordinator.schedule(twice, a, 5.0);
    EXPECT_EQ(coordinator.schedule(sum, a, b, "sum ").get(), "sum 36");
  });
}

TEST_P(Counting, PassesTheResultOfAStepThatPushesAlsoWithinItsRound) {
  const auto add = strategy_.step("add", [&](WorkerContext& ctx, double number) {
    counter_.assign_add(ctx, torch::ones({2}));
    return number + 1;
  });
  strategy_.coordinate([&](Coordinator& coordinator) {
    RemoteValue<double> last = coordinator.schedule(add, 0.0);
    for (int i = 0; i < 20; ++i) last = coordinator.schedule(add, last);
    EXPECT_EQ(last.get(), 21);
  });
  EXPECT_TRUE(torch::equal(counter_.read(), torch::full({2}, 21.0F)));
}

TEST_P(Counting, TheFirstErrorComesOnceAndClosesTheRest) {
  std::atomic<bool> fails = true;
  const auto step = strategy_.step("step", [&](WorkerContext& ctx) {
    if (ctx.step() == 4 && fails) throw std::invalid_argument("bad sample");
    counter_.assign_add(ctx, torch::ones({2}));
  });
  strategy_.coordinate([&](Coordinator& coordinator) {
    std::vector<RemoteValue<void>> values;
    try {
      for (int i = 0; i < 40; ++i) values.push_back(coordinator.schedule(step));
      coordinator.join();
      ADD_FAILURE() << "no error came";
    } catch (const ReplicaError& error) {
      EXPECT_EQ(error.step(), 4);
      EXPECT_THROW(std::rethrow_if_nested(error), std::invalid_argument);
    }
    EXPECT_NO_THROW(coordinator.join());
    EXPECT_THROW(values.at(4).get(), ReplicaError);
    fails = false;
    const int64_t before = coordinator.steps();
    for (int i = 0; i < 6; ++i) coordinator.schedule(step);
    coordinator.join();
    EXPECT_EQ(coordinator.steps(), before + 6);
    EXPECT_EQ(counter_.read()[0].item<double>(), static_cast<double>(coordinator.steps()));
  });
}

TEST_P(Counting, CancelledStepsSaySo) {
  std::atomic<bool> may_end = false;
  const auto slow = strategy_.step("slow", [&](WorkerContext&) {
    while (!may_end) std::this_thread::yield();
  });
  strategy_.coordinate([&](Coordinator& coordinator) {
    std::vector<RemoteValue<void>> values;
    for (int i = 0; i < 12; ++i) values.push_back(coordinator.schedule(slow));
    coordinator.cancel();
    may_end = true;
    EXPECT_THROW(values.back().get(), CancelledError);
    EXPECT_NO_THROW(coordinator.join());
  });
}

TEST_P(Counting, WhatTheProgramAssignsHoldsForLaterStepsAndForNoneBefore) {
  const auto seen = strategy_.step("seen", [&](WorkerContext& ctx) { return counter_.value(ctx)[0].item<double>(); });
  strategy_.coordinate([&](Coordinator& coordinator) {
    std::vector<RemoteValue<double>> before;
    std::vector<RemoteValue<double>> after;
    for (int i = 0; i < 9; ++i) before.push_back(coordinator.schedule(seen));
    counter_.assign(torch::full({2}, 5.0));
    for (int i = 0; i < 9; ++i) after.push_back(coordinator.schedule(seen));
    for (const double value : coordinator.get(before)) EXPECT_EQ(value, 0);
    for (const double value : coordinator.get(after)) EXPECT_EQ(value, 5);
  });
}

TEST_P(Counting, AStepSeesItsOwnChanges) {
  const auto step = strategy_.step("step", [&](WorkerContext& ctx) {
    const double before = counter_.value(ctx)[0].item<double>();
    counter_.assign_add(ctx, torch::ones({2}));
    return counter_.value(ctx)[0].item<double>() - before;
  });
  strategy_.coordinate([&](Coordinator& coordinator) { EXPECT_EQ(coordinator.schedule(step).get(), 1); });
}

INSTANTIATE_TEST_SUITE_P(Staleness, Counting, ::testing::Values(std::nullopt, 0, 1, 4), [](const auto& one) {
  return one.param ? "Of" + std::to_string(*one.param) : std::string("Unbounded");
});

using State = std::map<std::string, Tensor>;

/// The same program on a MirroredStrategy with a replica for each worker.
State mirrored(int64_t workers, int64_t steps, const StepOptions& options) {
  MirroredStrategy strategy({.devices = testing::lanes(1), .replicas = workers, .seed = 7});
  const auto model = strategy.make_module([] { return std::make_shared<testing::SmallNet>(); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(0.01));
  const auto data = strategy.distribute(testing::some_samples(50), {.global_batch = 8, .shuffle = true});
  int64_t done = 0;
  for (int64_t epoch = 0; done < steps; ++epoch) {
    for (const auto& batch : data.epoch(epoch)) {
      if (done++ == steps) break;
      strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
        ctx.scale_loss(torch::nn::functional::cross_entropy(model(ctx)->forward(part.input), part.target)).backward();
        optimizer.step(ctx, options);
      });
    }
  }
  State all = model.state();
  all.merge(optimizer.state());
  return all;
}

State served(const ParameterServerOptions& options, int64_t steps, const StepOptions& step_options) {
  ParameterServerStrategy strategy(options);
  const auto model = strategy.make_module([] { return std::make_shared<testing::SmallNet>(); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(0.01));
  const auto data = strategy.distribute(testing::some_samples(50), {.global_batch = 8, .shuffle = true});
  const auto train = strategy.step("train", [&](WorkerContext& ctx) {
    const Batch part = data.next(ctx);
    ctx.scale_loss(torch::nn::functional::cross_entropy(model(ctx)->forward(part.input), part.target)).backward();
    ctx.push(step_options);
  });
  strategy.coordinate([&](Coordinator& coordinator) {
    for (int64_t i = 0; i < steps; ++i) coordinator.schedule(train);
  });
  State all = model.state();
  all.merge(optimizer.state());
  return all;
}

void expect_equal(const State& a, const State& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, value] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_TRUE(torch::equal(value, b.at(name))) << name;
  }
}

class InStep : public ::testing::TestWithParam<int64_t> {};

TEST_P(InStep, WorkersHaveTheBitsOfReplicas) {
  const int64_t workers = GetParam();
  for (const StepOptions& options : {StepOptions{}, StepOptions{.clip_global_norm = 0.05}}) {
    expect_equal(served({.staleness = 0, .workers = workers, .seed = 7}, 10 * workers, options),
                 mirrored(workers, 10, options));
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, InStep, ::testing::Values(1, 2, 3, 5));

TEST(Asynchronous, OneWorkerHasTheBitsOfOneDevice) {
  expect_equal(served({.workers = 1, .seed = 7}, 12, {}), mirrored(1, 12, {}));
}

TEST(Asynchronous, ManyWorkersLearn) {
  ParameterServerStrategy strategy({.workers = 3, .seed = 7});
  const auto model = strategy.make_module([] { return std::make_shared<testing::SmallNet>(); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::AdagradOptions(0.05));
  const auto data = strategy.distribute(testing::some_samples(60), {.global_batch = 20, .shuffle = true});
  const auto train = strategy.step("train", [&](WorkerContext& ctx) {
    const Batch part = data.next(ctx);
    const Tensor loss = torch::nn::functional::cross_entropy(model(ctx)->forward(part.input), part.target);
    ctx.scale_loss(loss).backward();
    ctx.push();
    return loss.detach();
  });
  strategy.coordinate([&](Coordinator& coordinator) {
    std::vector<RemoteValue<Tensor>> losses;
    for (int i = 0; i < 120; ++i) losses.push_back(coordinator.schedule(train));
    coordinator.join();
    double first = 0;
    double last = 0;
    for (std::size_t i = 0; i < 12; ++i) {
      first += losses[i].get().item<double>();
      last += losses[losses.size() - 12 + i].get().item<double>();
    }
    EXPECT_LT(last, 0.9 * first);
  });
}

TEST(Bounded, NoStepMissesMoreThanKOfAnotherWorker) {
  for (const int64_t k : {1, 3}) {
    ParameterServerStrategy strategy({.staleness = k, .workers = 3, .seed = 7});
    std::vector<Variable> counts;  // how many steps of each worker count
    for (int w = 0; w < 3; ++w)
      counts.push_back(strategy.make_variable(torch::zeros({}), {.name = "w" + std::to_string(w), .trainable = false}));
    std::atomic<int64_t> worst = 0;
    const auto step = strategy.step("step", [&](WorkerContext& ctx) {
      const auto w = static_cast<std::size_t>(ctx.worker_index());
      const auto own = counts[w].value(ctx).item<int64_t>();
      for (std::size_t other = 0; other < 3; ++other) {
        const int64_t misses = own - counts[other].value(ctx).item<int64_t>();
        if (other != w && misses > worst) worst = misses;
      }
      counts[w].assign_add(ctx, torch::ones({}));
    });
    strategy.coordinate([&](Coordinator& coordinator) {
      for (int i = 0; i < 300; ++i) coordinator.schedule(step);
    });
    EXPECT_LE(worst, k);
    double all = 0;
    for (const Variable& one : counts) all += one.read().item<double>();
    EXPECT_EQ(all, 300);
  }
}

TEST(WorkerStreams, GiveEachWorkerItsOwnAndEndTheRun) {
  ParameterServerStrategy strategy({.workers = 2, .seed = 7});
  std::mutex mutex;
  std::multiset<double> seen;
  const auto data = strategy.distribute_to_workers([](const InputContext& context) {
    return data::from_tensors(torch::arange(12).to(torch::kFloat).view({12, 1}), torch::arange(12))
        .shard(context.num_input_pipelines, context.input_pipeline_id);
  });
  const auto step = strategy.step("step", [&](WorkerContext& ctx) {
    const Batch batch = data.next(ctx);
    const std::lock_guard<std::mutex> lock(mutex);
    for (int64_t i = 0; i < batch.size(); ++i) seen.insert(batch.input[i][0].item<double>());
  });
  strategy.coordinate([&](Coordinator& coordinator) {
    EXPECT_THROW(
        {
          for (int i = 0; i < 1000; ++i) {
            coordinator.schedule(step);
            coordinator.join();
          }
        },
        EndOfStream);
  });
  EXPECT_EQ(seen.size(), 12);
  EXPECT_EQ(std::set<double>(seen.begin(), seen.end()).size(), 12);
}

TEST(ParameterServerStrategy, HasNoRunsOfReplicas) {
  ParameterServerStrategy strategy({.workers = 2});
  expect_error<UsageError>([&] { strategy.run([](ReplicaContext&) {}); }, "LS-SCHEDULE", {"Strategy::run"});
  expect_error<UsageError>([&] { strategy.reduce(Reduction::kSum, PerReplica<Tensor>({torch::ones({})})); },
                           "LS-SCHEDULE", {"Strategy::reduce"});
  EXPECT_EQ(strategy.num_workers(), 2);
  EXPECT_EQ(strategy.name(), "ParameterServerStrategy");
}

TEST(ParameterServerStrategy, RefusesOptionsThatCannotBe) {
  expect_error<UsageError>([] { ParameterServerStrategy({.workers = 0}); }, "LS-OPTION", {".workers is 0"});
  expect_error<UsageError>([] { ParameterServerStrategy({.staleness = -1}); }, "LS-OPTION", {".staleness is -1"});
  ParameterServerStrategy strategy;
  const auto step = strategy.step("a", [](WorkerContext&) {});
  expect_error<UsageError>([&] { strategy.step("a", [](WorkerContext&) {}); }, "LS-NAME-TAKEN", {"'a'"});
}

TEST(ParameterServerStrategy, SaysWhereShardsLie) {
  ParameterServerStrategy strategy({.partitioner = fixed_shards_partitioner(2), .servers = 3});
  const Variable a = strategy.make_variable(torch::zeros({5, 2}), {.name = "a"});
  const Variable b = strategy.make_variable(torch::zeros({1}), {.name = "b"});
  using internal::Shard;
  EXPECT_EQ(strategy.servers_of(a), (std::vector<Shard>{{0, 3, 0}, {3, 2, 1}}));
  EXPECT_EQ(strategy.servers_of(b), (std::vector<Shard>{{0, 1, 2}}));
}

TEST(ParameterServerStrategy, CoordinatesAgainWhereItEnded) {
  ParameterServerStrategy strategy({.workers = 2});
  const Variable counter = strategy.make_variable(torch::zeros({}), {.name = "c", .trainable = false});
  const auto step = strategy.step("step", [&](WorkerContext& ctx) {
    counter.assign_add(ctx, torch::ones({}));
    return ctx.step();
  });
  for (int64_t run = 0; run < 3; ++run) {
    strategy.coordinate([&](Coordinator& coordinator) {
      EXPECT_EQ(coordinator.steps(), 2 * run);
      EXPECT_EQ(coordinator.schedule(step).get(), 2 * run);
      EXPECT_EQ(coordinator.schedule(step).get(), 2 * run + 1);
    });
  }
  EXPECT_EQ(counter.read().item<double>(), 6);
}

TEST(ParameterServerStrategy, WhatTheFunctionThrowsEndsTheRun) {
  ParameterServerStrategy strategy({.workers = 2});
  const auto step = strategy.step("step", [](WorkerContext&) {});
  EXPECT_THROW(strategy.coordinate([&](Coordinator& coordinator) {
    for (int i = 0; i < 100; ++i) coordinator.schedule(step);
    throw std::out_of_range("mine");
  }),
               std::out_of_range);
  EXPECT_EQ(strategy.coordinate([&](Coordinator& coordinator) { coordinator.schedule(step).get(); }), 0);
}

}  // namespace
}  // namespace lockstep
