// Schedules of learning rates where the tasks talk over sockets: the chief's hold, with the rates that threads have.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/server/parameter_server.h"
#include "tests/server/remote/remote_tasks.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using testing::expect_all_ended_well;
using testing::is_chief;
using testing::run_tasks;
using torch::Tensor;

/// What a program of one step, whose gradient is 1, does on the chief.
using Body = std::function<void(Coordinator&, const std::function<void(int64_t)>& schedule, const Optimizer&)>;

Tensor weight_after(const ParameterServerOptions& options, const std::vector<Body>& bodies) {
  ParameterServerStrategy strategy(options);
  const std::vector weights{strategy.make_variable(torch::zeros({2}), {.name = "weight"})};
  const auto optimizer = strategy.make_optimizer(weights, torch::optim::SGDOptions(0.25));
  const auto step = strategy.step("step", [&](WorkerContext& ctx) {
    weights[0].value(ctx).sum().backward();
    ctx.push({.loss_scaled_by_hand = true});
  });
  for (const Body& body : bodies) {
    strategy.coordinate([&](Coordinator& coordinator) {
      const auto schedule = [&](int64_t count) {
        for (int64_t i = 0; i < count; ++i) coordinator.schedule(step);
      };
      body(coordinator, schedule, optimizer);
      coordinator.join();
    });
  }
  return weights[0].read();
}

/// The tasks' weights are those of threads.
void expect_as_threads(ParameterServerOptions options, int64_t servers, const std::vector<Body>& bodies) {
  options.cluster = ClusterSpec();
  const Tensor expected = weight_after(options, bodies);
  expect_all_ended_well(run_tasks(options.workers, servers, [&](const ClusterSpec& spec) {
    ParameterServerOptions mine = options;
    mine.cluster = spec;
    const Tensor weight = weight_after(mine, bodies);
    if (is_chief(spec)) {
      EXPECT_TRUE(torch::equal(weight, expected)) << weight << expected;
    }
    return 0;
  }));
}

double rate_of(int64_t step) { return 1.0 / static_cast<double>(1 + step); }

TEST(RemoteSchedules, SetInsideCoordinateHoldForLaterStepsAsOnThreads) {
  const Body body = [](Coordinator&, const auto& schedule, const Optimizer& optimizer) {
    schedule(5);
    optimizer.set_schedule(rate_of);
    schedule(7);
    optimizer.set_schedule([](int64_t step) { return step < 15 ? 0.5 : 0.125; });
    schedule(6);
    optimizer.set_learning_rate(2);
    schedule(3);
  };
  expect_as_threads({.workers = 1}, 1, {body});
  expect_as_threads({.partitioner = fixed_shards_partitioner(2), .staleness = 0, .workers = 2}, 2, {body});
}

TEST(RemoteSchedules, SetInsideCoordinateHoldInTheNextOneToo) {
  const Body first = [](Coordinator&, const auto& schedule, const Optimizer& optimizer) {
    optimizer.set_schedule(rate_of);
    schedule(4);
  };
  const Body next = [](Coordinator&, const auto& schedule, const Optimizer&) { schedule(4); };
  const Body last = [](Coordinator&, const auto& schedule, const Optimizer& optimizer) {
    optimizer.set_learning_rate(0.5);
    schedule(4);
  };
  expect_as_threads({.workers = 1}, 2, {first, next, last, next});
}

TEST(RemoteSchedules, AreToldInTimeForAsManyStepsAsThereAre) {
  const Body body = [](Coordinator&, const auto& schedule, const Optimizer& optimizer) {
    optimizer.set_schedule([](int64_t step) { return 1.0 / static_cast<double>(int64_t{1} << (step % 7)); });
    schedule(5000);
  };
  expect_as_threads({.workers = 1}, 1, {body});
}

TEST(RemoteSchedules, ThatThrowFailTheStepThatAsksForTheRate) {
  expect_all_ended_well(run_tasks(1, 1, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec});
    const std::vector weights{strategy.make_variable(torch::zeros({2}), {.name = "weight"})};
    const auto optimizer = strategy.make_optimizer(weights, torch::optim::SGDOptions(0.25));
    const auto step = strategy.step("step", [&](WorkerContext& ctx) {
      weights[0].value(ctx).sum().backward();
      ctx.push();
    });
    try {
      strategy.coordinate([&](Coordinator& coordinator) {
        optimizer.set_schedule([](int64_t at) -> double {
          if (at >= 2) throw std::out_of_range("no rate for it");
          return 0.5;
        });
        for (int i = 0; i < 3; ++i) coordinator.schedule(step);
        coordinator.join();
      });
      EXPECT_FALSE(is_chief(spec));
    } catch (const std::exception& error) {
      if (is_chief(spec)) {
        EXPECT_NE(message_of(std::current_exception()).find("no rate for it"), std::string::npos) << error.what();
      }
    }
    return 0;
  }));
}

}  // namespace
}  // namespace lockstep
