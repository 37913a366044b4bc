// Coordinator::evaluate where tasks talk over sockets: what it gives is what threads give.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/server/parameter_server.h"
#include "lockstep/strategy/metrics.h"
#include "tests/server/remote/remote_tasks.h"
#include "tests/server/small_net.h"
#include "tests/support/errors.h"
#include "tests/support/worker_processes.h"

namespace lockstep {
namespace {

using std::chrono::seconds;
using testing::expect_all_ended_well;
using testing::expect_error;
using testing::is_chief;
using testing::run_tasks;
using torch::Tensor;

torch::nn::Sequential make_net() {
  return torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8), torch::nn::Dropout(0.2),
                               torch::nn::Linear(8, 3));
}

/// What three evaluations of a net gave, between which it was trained.
struct Evaluated {
  std::vector<Tensor> losses;
  std::vector<double> accuracies;
  std::vector<int64_t> counts;
  double one_device = 0;  // the first loss, of the exported module over all samples
};

Evaluated evaluated(const ParameterServerOptions& options, int* code) {
  ParameterServerStrategy strategy(options);
  const auto model = strategy.make_module(make_net);
  const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1));
  const metrics::Accuracy accuracy(strategy, "accuracy");
  const metrics::Mean mean(strategy, "mean");
  const auto data = strategy.distribute(testing::some_samples(48), {.global_batch = 12});
  const auto validation = strategy.distribute(testing::some_samples(13), {.global_batch = 4});
  const auto loss_of = [](const Tensor& output, const Batch& part) {
    return torch::nn::functional::cross_entropy(output, part.target);
  };
  const auto train = strategy.step("train", [&](WorkerContext& ctx) {
    const Batch part = data.next(ctx);
    ctx.scale_loss(loss_of(model(ctx)->forward(part.input), part)).backward();
    ctx.push();
  });
  const auto judge = strategy.step("judge", [&](WorkerContext& ctx, const Batch& part) {
    EXPECT_FALSE(at::GradMode::is_enabled());
    EXPECT_GT(part.samples(), 0);
    const Tensor output = model(ctx)->forward(part.input);
    accuracy.update(ctx, output, part.target);
    mean.update(ctx, torch::rand({1}), part.samples());  // as the part's own stream has it
    return loss_of(output, part);
  });
  Evaluated all;
  *code = strategy.coordinate([&](Coordinator& coordinator) {
    for (int round = 0; round < 3; ++round) {
      if (round != 1)
        for (int i = 0; i < 6; ++i) coordinator.schedule(train);
      all.losses.push_back(coordinator.evaluate(validation, judge));
      all.accuracies.push_back(accuracy.result() + mean.result());
      all.counts.push_back(mean.count());
      if (round > 0) continue;
      EXPECT_EQ(coordinator.steps(), 6);
      auto alone = model.export_module();
      alone->eval();
      const torch::NoGradGuard no_grad;
      const Tensor x = torch::arange(13 * 6).to(torch::kFloat).mul(0.37).sin().view({13, 6});
      Batch whole;
      whole.target = x.argmax(1).remainder(3);
      all.one_device = loss_of(alone->forward(x), whole).item<double>();
    }
  });
  return all;
}

TEST(RemoteEvaluate, HasTheBitsOfThreadsOverUnevenAndEmptyParts) {
  for (const std::optional<int64_t> staleness : {std::optional<int64_t>(0), std::optional<int64_t>()}) {
    const int64_t workers = staleness ? 3 : 1;  // otherwise the order of steps depends on timing
    int code = -1;
    const Evaluated threads =
        evaluated({.cluster = ClusterSpec(), .staleness = staleness, .workers = workers, .seed = 7}, &code);
    EXPECT_NEAR(threads.losses[0].item<double>(), threads.one_device, 1e-6);
    for (const int64_t servers : {1, 3}) {
      Evaluated tasks;
      expect_all_ended_well(run_tasks(workers, servers, [&](const ClusterSpec& spec) {
        int mine = -1;
        Evaluated all = evaluated({.cluster = spec,
                                   .partitioner = servers > 1 ? fixed_shards_partitioner(2) : Partitioner(),
                                   .staleness = staleness,
                                   .seed = 7},
                                  &mine);
        if (is_chief(spec)) tasks = std::move(all);
        return mine;
      }));
      ASSERT_EQ(tasks.losses.size(), 3);
      for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(tasks.losses[i], threads.losses[i])) << i;
      EXPECT_EQ(tasks.accuracies, threads.accuracies);
      EXPECT_EQ(tasks.counts, (std::vector<int64_t>{13, 26, 39}));
      EXPECT_EQ(tasks.one_device, threads.one_device);
    }
  }
}

TEST(RemoteEvaluate, SeesOneStateOfAllServersWhileOtherThreadsScheduleAndAssign) {
  expect_all_ended_well(run_tasks(2, 2, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec, .partitioner = fixed_shards_partitioner(2)});
    const Variable weight = strategy.make_variable(torch::zeros({4}), {.name = "w", .trainable = false});
    const auto data = strategy.distribute(testing::some_samples(12), {.global_batch = 1});
    const metrics::Mean squares(strategy, "squares");
    const auto add = strategy.step("add", [&](WorkerContext& ctx) { weight.assign_add(ctx, torch::ones({4})); });
    const auto judge = strategy.step("judge", [&](WorkerContext& ctx, const Batch&) {
      const Tensor value = weight.value(ctx);
      EXPECT_EQ(value.min().item<double>(), value.max().item<double>());
      squares.update(ctx, value[0] * value[0]);
      return value[0].item<double>();
    });
    return strategy.coordinate([&](Coordinator& coordinator) {
      std::atomic<bool> is_over = false;
      std::thread other([&] {
        for (int i = 0; !is_over; ++i) {
          if (i % 8 != 0) {
            coordinator.schedule(add);
          } else {
            weight.assign_add(torch::ones({4}));
          }
        }
      });
      double last = -1;
      for (int i = 0; i < 5; ++i) {
        squares.reset();
        const double mean = coordinator.evaluate(data, judge);
        EXPECT_EQ(squares.result(), mean * mean);  // all parts have seen the same
        EXPECT_GE(mean, last);
        last = mean;
      }
      is_over = true;
      other.join();
    });
  }));
}

TEST(RemoteEvaluate, ThatThrowsLeavesNothingAndGoesOnAfterwards) {
  std::atomic<bool> fails = true;  // of all tasks, which are threads here
  expect_all_ended_well(run_tasks(2, 1, [&](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec});
    const metrics::Mean metric(strategy, "loss");
    const auto data = strategy.distribute(testing::some_samples(20), {.global_batch = 2});
    const auto judge = strategy.step("judge", [&](WorkerContext& ctx, const Batch& part) {
      metric.update(ctx, torch::ones({part.size()}));
      if (fails && part.ids[0].item<int64_t>() >= 10) throw std::invalid_argument("bad sample");
      return 2.0F;
    });
    const auto bad = strategy.step("bad", [](WorkerContext&) { throw std::out_of_range("no"); });
    const auto quantized = strategy.step("quantized", [](WorkerContext&, const Batch&) {
      return torch::quantize_per_tensor(torch::ones({2}), 0.1, 0, torch::kQInt8);
    });
    return strategy.coordinate([&](Coordinator& coordinator) {
      const auto error = testing::error_from<ReplicaError>([&] { coordinator.evaluate(data, judge); });
      EXPECT_EQ(error.step(), 0);
      EXPECT_THROW(std::rethrow_if_nested(error), std::invalid_argument);
      EXPECT_EQ(metric.count(), 0);
      fails = false;
      EXPECT_EQ(coordinator.evaluate(data, judge), 2.0);
      EXPECT_EQ(metric.count(), 20);
      EXPECT_THROW(coordinator.evaluate(data, quantized), ReplicaError);
      coordinator.schedule(bad);
      EXPECT_THROW(coordinator.evaluate(data, judge), ReplicaError);
      EXPECT_EQ(coordinator.evaluate(data, judge), 2.0);
      EXPECT_EQ(metric.count(), 40);
    });
  }));
}

TEST(RemoteEvaluate, RefusesAFunctionThatWorkersDoNotKnow) {
  expect_all_ended_well(run_tasks(1, 1, [](const ClusterSpec& spec) {
    ParameterServerStrategy strategy({.cluster = spec});
    const auto data = strategy.distribute(testing::some_samples(4), {.global_batch = 2});
    const auto vague = strategy.step("vague", [](WorkerContext&, const auto& /*anything*/) { return 1; });
    return strategy.coordinate([&](Coordinator& coordinator) {
      expect_error<UsageError>([&] { coordinator.evaluate(data, [](WorkerContext&, const Batch&) { return 1; }); },
                               "LS-EVALUATE", {"do not know", "strategy.step"});
      expect_error<UsageError>([&] { coordinator.evaluate(data, vague); }, "LS-EVALUATE", {"takes a Batch"});
    });
  }));
}

std::string variable_of(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The chief evaluates once. The worker that gets the sample 5 first stands there.
WORKER_BODY(evaluates) {
  ClusterSpec spec = testing::cluster_of_tasks(2, 2, static_cast<uint16_t>(std::stoi(variable_of("PORT"))));
  spec.job = variable_of("JOB");
  spec.task = std::stoll(variable_of("TASK"));
  ParameterServerStrategy strategy({.cluster = spec,
                                    .partitioner = fixed_shards_partitioner(2),
                                    .timeouts = {.join = seconds(60), .lost = seconds(2)}});
  const Variable weight = strategy.make_variable(torch::full({6}, 2.0), {.name = "w", .trainable = false});
  const metrics::Mean metric(strategy, "loss");
  const auto data = strategy.distribute(testing::some_samples(11), {.global_batch = 2});
  const auto judge = strategy.step("judge", [&](WorkerContext& ctx, const Batch& part) {
    const Tensor ids = part.ids.to(torch::kDouble);
    metric.update(ctx, ids);
    if (!variable_of("STANDS").empty() && part.ids[0].item<int64_t>() >= 2) {
      testing::report("stands");
      testing::wait_for("never");
    }
    return ids.mean() * weight.value(ctx)[5];
  });
  try {
    const int code = strategy.coordinate([&](Coordinator& coordinator) {
      const double mean = coordinator.evaluate(data, judge).item<double>();
      testing::report("mean " + std::to_string(mean) + " metric " + std::to_string(metric.result()) + " of " +
                      std::to_string(metric.count()));
    });
    testing::report("code " + std::to_string(code));
  } catch (const std::exception& error) {
    testing::report(std::string("error ") + error.what());
  }
}

TEST(RemoteEvaluate, PartsOfAKilledWorkerGoToAnotherOneAndCountOnce) {
  const std::string port = std::to_string(testing::free_port());
  testing::WorkerProcesses tasks("evaluates", 5, [&](int64_t index) -> testing::WorkerProcesses::Environment {
    const bool is_worker = index == 1 || index == 2;
    return {{"PORT", port},
            {"JOB", index == 0  ? "chief"
                    : is_worker ? "worker"
                                : "ps"},
            {"TASK", std::to_string(index == 0  ? 0
                                    : is_worker ? index - 1
                                                : index - 3)},
            {"STANDS", index == 2 ? "1" : ""}};
  });
  tasks.expect(2, "stands", seconds(120));
  tasks.signal(2, SIGKILL);
  EXPECT_EQ(tasks.expect(0, "mean ", seconds(60)).text, "mean 10.000000 metric 5.000000 of 11.000000");
  for (const int64_t task : {0, 1, 3, 4}) tasks.expect(task, "code 0", seconds(60));
}

}  // namespace
}  // namespace lockstep
