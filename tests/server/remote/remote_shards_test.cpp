// Variables that are cut into shards on several servers, which are tasks of their own: all is as where they are whole.
#include <gtest/gtest.h>
#include <torch/nn/functional/embedding.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/core/log.h"
#include "lockstep/optim/rules/rules.h"
#include "lockstep/server/local/variable_parts.h"
#include "lockstep/server/parameter_server.h"
#include "tests/server/remote/remote_tasks.h"
#include "tests/server/small_net.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

using testing::expect_all_ended_well;
using testing::is_chief;
using testing::run_tasks;
using torch::Tensor;
using State = std::map<std::string, Tensor>;
/// Runs on one task, and gives the exit code; `state` is what the chief has at the end.
using Program = std::function<int(const ParameterServerOptions&, State& state)>;

State state_of_tasks(const Program& program, const ParameterServerOptions& options, int64_t workers, int64_t servers) {
  State state;
  expect_all_ended_well(run_tasks(workers, servers, [&](const ClusterSpec& spec) {
    ParameterServerOptions mine = options;
    mine.cluster = spec;
    State all;
    const int code = program(mine, all);
    if (is_chief(spec)) state = std::move(all);
    return code;
  }));
  return state;
}

State state_of_threads(const Program& program, ParameterServerOptions options, int64_t workers) {
  options.cluster = ClusterSpec();
  options.workers = workers;
  State state;
  program(options, state);
  return state;
}

void expect_equal(const State& a, const State& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, value] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_TRUE(torch::equal(value, b.at(name))) << name;
  }
}

/// A net with dropout that AdamW trains; the rate changes on the way.
struct Training {
  explicit Training(const ParameterServerOptions& options)
      : strategy(options),
        model(strategy.make_module([] { return std::make_shared<testing::SmallNet>(); })),
        optimizer(strategy.make_optimizer(model, torch::optim::AdamWOptions(0.01))),
        data(strategy.distribute(testing::some_samples(50), {.global_batch = 8, .shuffle = true})) {}

  auto step(const StepOptions& step_options = {}) {
    return strategy.step("train", [this, step_options](WorkerContext& ctx) {
      const Batch part = data.next(ctx);
      ctx.scale_loss(torch::nn::functional::cross_entropy(model(ctx)->forward(part.input), part.target)).backward();
      ctx.push(step_options);
    });
  }
  State state() const {
    State all = model.state();
    all.merge(optimizer.state());
    return all;
  }

  ParameterServerStrategy strategy;
  Replicated<std::shared_ptr<testing::SmallNet>> model;
  Optimizer optimizer;
  DistributedDataset data;
};

Program training(int64_t steps, const StepOptions& step_options = {}) {
  return [=](const ParameterServerOptions& options, State& state) {
    Training run(options);
    const auto step = run.step(step_options);
    const int code = run.strategy.coordinate([&](Coordinator& coordinator) {
      for (int64_t i = 0; i < steps; ++i) {
        if (i == steps / 2) run.optimizer.set_learning_rate(0.005);
        coordinator.schedule(step);
      }
    });
    state = run.state();
    return code;
  };
}

TEST(RemoteShards, HaveTheBitsOfThreadsInStep) {
  const State threads = state_of_threads(training(12), {.staleness = 0, .seed = 7}, 2);
  const std::vector<Partitioner> partitioners{fixed_shards_partitioner(2), fixed_shards_partitioner(5),
                                              min_size_partitioner(40), max_size_partitioner(50, 3)};
  for (const Partitioner& partitioner : partitioners) {
    for (const int64_t servers : {2, 3}) {
      expect_equal(state_of_tasks(training(12), {.partitioner = partitioner, .staleness = 0, .seed = 7}, 2, servers),
                   threads);
    }
  }
  expect_equal(state_of_tasks(training(12),
                              {.partitioner = fixed_shards_partitioner(4),
                               .placement = ServerPlacement::kByBytes,
                               .staleness = 0,
                               .seed = 7},
                              2, 3),
               threads);
}

TEST(RemoteShards, OfOneWorkerHaveTheBitsOfThreadsWithoutABound) {
  const ParameterServerOptions options{.partitioner = fixed_shards_partitioner(3), .seed = 7};
  expect_equal(state_of_tasks(training(14), options, 1, 3), state_of_threads(training(14), options, 1));
}

TEST(RemoteShards, AreClippedByTheNormOfAll) {
  const StepOptions clip{.clip_global_norm = 0.05};
  for (const std::optional<int64_t> staleness : {std::optional<int64_t>(0), std::optional<int64_t>()}) {
    const int64_t workers = staleness ? 2 : 1;  // otherwise the order of steps depends on timing
    const ParameterServerOptions options{.partitioner = fixed_shards_partitioner(2), .staleness = staleness, .seed = 7};
    const State tasks = state_of_tasks(training(12, clip), options, workers, 2);
    const State threads = state_of_threads(training(12, clip), options, workers);
    ASSERT_EQ(tasks.size(), threads.size());
    for (const auto& [name, value] : tasks) EXPECT_TRUE(torch::allclose(value, threads.at(name), 1e-4, 1e-6)) << name;
  }
}

TEST(RemoteShards, OfSparseGradientsHaveTheBitsOfThreads) {
  for (const bool is_adagrad : {false, true}) {
    const Program program = [&](const ParameterServerOptions& options, State& state) {
      ParameterServerStrategy strategy(options);
      const Variable rows =
          strategy.make_variable(torch::arange(44).to(torch::kFloat).view({11, 4}).sin(), {.name = "r"});
      const Optimizer optimizer = is_adagrad
                                      ? strategy.make_optimizer(std::vector{rows}, torch::optim::AdagradOptions(0.1))
                                      : strategy.make_optimizer(std::vector{rows}, torch::optim::SGDOptions(0.1));
      const auto step = strategy.step("step", [&](WorkerContext& ctx) {
        // Some steps have no row of some servers.
        const Tensor ids = torch::tensor({ctx.step() % 11, (ctx.step() + 3) % 11, ctx.step() % 11});
        const Tensor used = torch::embedding(rows.value(ctx), ids, -1, false, /*sparse=*/true);
        (used.square().sum() * 0.5).backward();
        ctx.push({.loss_scaled_by_hand = true});
      });
      const int code = strategy.coordinate([&](Coordinator& coordinator) {
        for (int64_t i = 0; i < 24; ++i) coordinator.schedule(step);
      });
      state = optimizer.state();
      state["r"] = rows.read();
      return code;
    };
    const ParameterServerOptions options{.partitioner = fixed_shards_partitioner(4), .staleness = 0, .seed = 7};
    expect_equal(state_of_tasks(program, options, 2, 3), state_of_threads(program, options, 2));
  }
}

TEST(RemoteShards, AreOneValueForWhoAssignsAndReads) {
  expect_all_ended_well(run_tasks(2, 3, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec, .partitioner = fixed_shards_partitioner(5), .seed = 7});
    const Variable value =
        strategy.make_variable(torch::arange(14).to(torch::kFloat).view({7, 2}), {.name = "value", .trainable = false});
    const auto seen = strategy.step("seen", [&](WorkerContext& ctx) { return value.value(ctx); });
    const auto add = strategy.step("add", [&](WorkerContext& ctx, const Tensor& by) {
      value.assign_add(ctx, by);
      return value.value(ctx);
    });
    const auto set = strategy.step("set", [&](WorkerContext& ctx, const Tensor& to) { value.assign(ctx, to); });
    return strategy.coordinate([&](Coordinator& coordinator) {
      const Tensor first = torch::arange(14).to(torch::kFloat).view({7, 2});
      EXPECT_TRUE(torch::equal(value.read(), first));
      EXPECT_TRUE(torch::equal(coordinator.schedule(seen).get(), first));
      EXPECT_TRUE(torch::equal(coordinator.schedule(add, first * 2).get(), first * 3));
      EXPECT_TRUE(torch::equal(value.read(), first * 3));
      value.assign(first.neg());
      EXPECT_TRUE(torch::equal(coordinator.schedule(seen).get(), first.neg()));
      coordinator.schedule(set, first + 1);
      coordinator.join();
      EXPECT_TRUE(torch::equal(value.read(), first + 1));
      EXPECT_TRUE(torch::equal(coordinator.schedule(seen).get(), first + 1));
      EXPECT_TRUE(torch::equal(coordinator.schedule(seen).get(), first + 1));
    });
  }));
}

/// Each worker has a module over a variable that is cut, and a step of another one changes it.
TEST(RemoteShards, AModuleHasWhatChangedOnAnyServer) {
  expect_all_ended_well(run_tasks(1, 2, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec, .partitioner = fixed_shards_partitioner(2), .seed = 7});
    const auto model = strategy.make_module([] { return std::make_shared<testing::SmallNet>(); });
    const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(1));
    const auto seen = strategy.step("seen", [&](WorkerContext& ctx) { return model(ctx)->a->weight.detach().clone(); });
    const auto change = strategy.step("change", [&](WorkerContext& ctx) {
      model(ctx)->a->weight.sum().backward();
      ctx.push();
    });
    return strategy.coordinate([&](Coordinator& coordinator) {
      const Tensor before = coordinator.schedule(seen).get();
      EXPECT_TRUE(torch::equal(coordinator.schedule(seen).get(), before));
      coordinator.schedule(change);
      EXPECT_TRUE(torch::equal(coordinator.schedule(seen).get(), before - 1));
      EXPECT_TRUE(torch::equal(model.state().at("a.weight"), before - 1));
    });
  }));
}

TEST(RemoteShards, WhatNeedsWholeVariablesStaysWhole) {
  const Program program = [](const ParameterServerOptions& options, State& state) {
    ParameterServerStrategy strategy(options);
    const auto model = strategy.make_module([] { return std::make_shared<testing::SmallNet>(); });
    const auto optimizer =
        strategy.make_optimizer(model, UpdateRuleOptions{.rule = rules::lamb(), .learning_rate = 0.01});
    const Variable parts =
        strategy.make_variable(torch::zeros({6}), {.name = "parts",
                                                   .trainable = false,
                                                   .synchronization = VariableSynchronization::kOnRead,
                                                   .aggregation = VariableAggregation::kSum});
    const Variable cut = strategy.make_variable(torch::zeros({6}), {.name = "cut", .trainable = false});
    for (const Variable& one : strategy.variables()) {
      if (one.name().find('/') != std::string::npos) continue;  // a slot
      EXPECT_EQ(strategy.servers_of(one).size(), one.name() == "cut" ? 3 : 1) << one.name();
    }
    const auto step = strategy.step("step", [&](WorkerContext& ctx) {
      const Tensor input = torch::full({2, 6}, 0.1 * static_cast<double>(ctx.step()));
      (model(ctx)->forward(input).square().mean() * 0.5).backward();
      parts.assign_add(ctx, torch::ones({6}));
      ctx.push({.loss_scaled_by_hand = true});
    });
    const int code = strategy.coordinate([&](Coordinator& coordinator) {
      for (int64_t i = 0; i < 8; ++i) coordinator.schedule(step);
    });
    state = model.state();
    state.merge(optimizer.state());
    state["parts"] = parts.read();
    return code;
  };
  const ParameterServerOptions options{
      .partitioner = fixed_shards_partitioner(3), .staleness = 0, .servers = 3, .seed = 7};
  const State tasks = state_of_tasks(program, options, 2, 3);
  expect_equal(tasks, state_of_threads(program, options, 2));
  EXPECT_TRUE(torch::equal(tasks.at("parts"), torch::full({6}, 8.0)));
}

class RemoteShardCheckpoints : public testing::ScratchFolder {};

TEST_F(RemoteShardCheckpoints, AreRestoredOnAnotherNumberOfServers) {
  const auto steps_from = [&](int64_t first, int64_t end, const char* restored, const char* saved) -> Program {
    return [=, this](const ParameterServerOptions& options, State& state) {
      Training run(options);
      const auto step = run.step();
      Checkpoint checkpoint(run.strategy);
      if (restored != nullptr && is_chief(*options.cluster)) checkpoint.restore(path(restored));
      const int code = run.strategy.coordinate([&](Coordinator& coordinator) {
        EXPECT_EQ(coordinator.steps(), first);
        for (int64_t i = first; i < end; ++i) coordinator.schedule(step);
        coordinator.join();
        if (saved != nullptr) checkpoint.save(path(saved));
      });
      state = run.state();
      return code;
    };
  };
  const ParameterServerOptions options{.partitioner = fixed_shards_partitioner(4), .staleness = 0, .seed = 7};
  const State whole = state_of_tasks(steps_from(0, 16, nullptr, nullptr), options, 2, 2);
  state_of_tasks(steps_from(0, 6, nullptr, "a"), options, 2, 3);
  const State at_ten = state_of_tasks(steps_from(6, 10, "a", "b"), options, 2, 2);
  expect_equal(state_of_tasks(steps_from(10, 16, "b", nullptr), options, 2, 1), whole);
  // The file has whole values, which any strategy takes.
  Training alone({.cluster = ClusterSpec(), .staleness = 0, .workers = 2, .seed = 7});
  Checkpoint(alone.strategy).restore(path("b"));
  expect_equal(alone.state(), at_ten);
}

TEST(RemoteServers, SayNothingOfGradientsOfVariablesThatLieElsewhere) {
  std::mutex mutex;
  std::string warnings;
  set_log_sink([&](LogLevel level, std::string_view line) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (level == LogLevel::kWarning) warnings += std::string(line) + "\n";
  });
  expect_all_ended_well(run_tasks(1, 2, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec, .seed = 7});
    std::vector<Variable> all;
    for (const char* const name : {"first", "second", "third"})
      all.push_back(strategy.make_variable(torch::ones({2}), {.name = name}));
    const auto optimizer = strategy.make_optimizer(all, torch::optim::SGDOptions(0.1));
    const auto step = strategy.step("step", [&](WorkerContext& ctx) {
      (all[0].value(ctx) + all[1].value(ctx)).sum().backward();  // and none of the third
      ctx.push();
    });
    return strategy.coordinate([&](Coordinator& coordinator) {
      for (int i = 0; i < 3; ++i) coordinator.schedule(step);
    });
  }));
  set_log_sink({});
  EXPECT_EQ(warnings.find("'first'"), std::string::npos) << warnings;
  EXPECT_EQ(warnings.find("'second'"), std::string::npos) << warnings;
  EXPECT_NE(warnings.find("'third'"), std::string::npos) << warnings;
}

namespace parts {

using internal::VariablePart;

TEST(VariableParts, AreCutOutAndPutTogether) {
  const std::vector<VariablePart> all = internal::parts_of({{0, 3, 1}, {3, 2, 0}, {5, 2, 1}});
  ASSERT_EQ(all.size(), 2);
  // A worker keeps what it has of each part in the order in which servers answer.
  EXPECT_EQ(all[0].server, 0);
  EXPECT_EQ(all[1].server, 1);
  const Tensor whole = torch::arange(14).to(torch::kFloat).view({7, 2});
  EXPECT_EQ(internal::sizes_of(all[1], whole.sizes()), (std::vector<int64_t>{5, 2}));
  EXPECT_TRUE(torch::equal(internal::part_of(whole, all[1]), whole.index_select(0, torch::tensor({0, 1, 2, 5, 6}))));
  EXPECT_TRUE(torch::equal(internal::part_of(whole, all[0]), whole.narrow(0, 3, 2)));
  Tensor again = torch::zeros({7, 2});
  for (const VariablePart& one : all) internal::put_part(again, internal::part_of(whole, one), one);
  EXPECT_TRUE(torch::equal(again, whole));
  const Tensor only = internal::spread(internal::part_of(whole, all[0]), all[0], whole.sizes());
  EXPECT_TRUE(torch::equal(only.narrow(0, 3, 2), whole.narrow(0, 3, 2)));
  EXPECT_EQ(only.narrow(0, 0, 3).abs().sum().item<double>() + only.narrow(0, 5, 2).abs().sum().item<double>(), 0);
}

TEST(VariableParts, OfSparseGradientsKeepTheirRows) {
  const std::vector<VariablePart> all = internal::parts_of({{0, 3, 0}, {3, 2, 1}, {5, 2, 0}});
  Tensor whole = torch::zeros({7, 2});
  whole[1].fill_(2);
  whole[5].fill_(3);
  const Tensor sparse = whole.to_sparse(1);
  Tensor sum = torch::zeros({7, 2});
  for (const VariablePart& one : all) {
    const Tensor part = internal::part_of(sparse, one);
    EXPECT_TRUE(part.is_sparse());
    EXPECT_TRUE(torch::equal(part.to_dense(), internal::part_of(whole, one)));
    sum += internal::spread(part, one, whole.sizes()).to_dense();
  }
  EXPECT_TRUE(torch::equal(sum, whole));
  EXPECT_EQ(internal::part_of(sparse, all[1])._nnz(), 0);
}

TEST(VariableParts, OfOneServerAreTheWhole) {
  const std::vector<VariablePart> all = internal::parts_of({{0, 3, 2}, {3, 2, 2}});
  ASSERT_EQ(all.size(), 1);
  EXPECT_TRUE(all.front().is_whole());
}

}  // namespace parts

}  // namespace
}  // namespace lockstep
