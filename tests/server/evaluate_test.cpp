// Coordinator::evaluate: what it sees, what it gives, and what it leaves behind.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <atomic>
#include <cmath>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/server/parameter_server.h"
#include "lockstep/strategy/kinds/mirrored.h"
#include "lockstep/strategy/metrics.h"
#include "tests/server/small_net.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using testing::expect_error;
using torch::Tensor;

Tensor loss_of(const Tensor& output, const Batch& part) {
  return torch::nn::functional::cross_entropy(output, part.target);
}

/// A net that was trained for some steps, and a data set of which the last batch is short.
struct Trained {
  explicit Trained(const ParameterServerOptions& options, int64_t samples = 13)
      : strategy(options),
        model(strategy.make_module([] { return std::make_shared<testing::SmallNet>(); })),
        optimizer(strategy.make_optimizer(model, torch::optim::SGDOptions(0.1))),
        data(strategy.distribute(testing::some_samples(40), {.global_batch = 4})),
        validation(strategy.distribute(testing::some_samples(samples), {.global_batch = 4})) {}

  auto step() {
    return strategy.step("train", [this](WorkerContext& ctx) {
      const Batch part = data.next(ctx);
      ctx.scale_loss(loss_of(model(ctx)->forward(part.input), part)).backward();
      ctx.push();
    });
  }

  ParameterServerStrategy strategy;
  Replicated<std::shared_ptr<testing::SmallNet>> model;
  Optimizer optimizer;
  DistributedDataset data;
  DistributedDataset validation;
};

TEST(Evaluate, WeighsEachSampleOnceAfterWhatWasScheduledBefore) {
  for (const std::optional<int64_t> staleness : {std::optional<int64_t>(), std::optional<int64_t>(0)}) {
    Trained run({.staleness = staleness, .workers = 3, .seed = 7});
    const auto step = run.step();
    std::mutex mutex;
    std::multiset<int64_t> used;
    run.strategy.coordinate([&](Coordinator& coordinator) {
      for (int i = 0; i < 9; ++i) coordinator.schedule(step);
      const Tensor loss = coordinator.evaluate(run.validation, [&](WorkerContext& ctx, const Batch& part) {
        EXPECT_EQ(ctx.step(), 9);
        EXPECT_FALSE(at::GradMode::is_enabled());
        EXPECT_FALSE(run.model(ctx)->is_training());
        const std::lock_guard<std::mutex> lock(mutex);
        for (int64_t i = 0; i < part.size(); ++i) used.insert(part.ids[i].item<int64_t>());
        return loss_of(run.model(ctx)->forward(part.input), part);
      });
      EXPECT_EQ(coordinator.steps(), 9);
      const auto alone = run.model.export_module();
      alone->eval();
      const torch::NoGradGuard no_grad;
      Batch whole;
      const Tensor x = torch::arange(13 * 6).to(torch::kFloat).mul(0.37).sin().view({13, 6});
      whole.target = x.argmax(1).remainder(3);
      EXPECT_NEAR(loss.item<double>(), loss_of(alone->forward(x), whole).item<double>(), 1e-6);
      coordinator.schedule(step).get();  // with modules in training mode again, and its own number
      EXPECT_EQ(coordinator.steps(), 10);
    });
    EXPECT_EQ(used.size(), 13);
    EXPECT_EQ(std::set<int64_t>(used.begin(), used.end()).size(), 13);
    EXPECT_EQ(run.validation.cursor().epoch, 0);
    EXPECT_EQ(run.validation.cursor().position, 0);
  }
}

TEST(Evaluate, HasTheBitsOfAnyNumberOfWorkers) {
  std::optional<Tensor> expected;
  std::optional<double> accuracy;
  for (const int64_t workers : {1, 2, 3, 5}) {
    Trained run({.workers = workers, .seed = 7}, 47);
    const metrics::Mean metric(run.strategy, "loss");
    run.strategy.coordinate([&](Coordinator& coordinator) {
      const Tensor loss = coordinator.evaluate(run.validation, [&](WorkerContext& ctx, const Batch& part) {
        const Tensor noise = torch::rand({1}) * 0.1;  // as the part's own stream has it
        const Tensor value = loss_of(run.model(ctx)->forward(part.input) * noise, part);
        metric.update(ctx, value, part.samples());
        return value;
      });
      if (!expected) expected = loss;
      EXPECT_TRUE(torch::equal(loss, *expected)) << workers << " workers";
    });
    if (!accuracy) accuracy = metric.result();
    EXPECT_EQ(metric.result(), *accuracy);
    EXPECT_EQ(metric.count(), 47);
  }
}

TEST(Evaluate, InStepHasTheBitsOfAMirroredStrategy) {
  const auto value_of = [](auto& model, auto& ctx, const Batch& part) -> Tensor {
    return loss_of(model(ctx)->forward(part.input) + torch::rand({1}), part);
  };
  const auto net = [] {
    return torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8), torch::nn::Dropout(0.2),
                                 torch::nn::Linear(8, 3));
  };
  std::vector<double> expected;
  {
    MirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = 3, .seed = 7});
    auto model = strategy.make_module(net);
    const metrics::Mean metric(strategy, "loss");
    const auto data = strategy.distribute(testing::some_samples(48), {.global_batch = 12});
    const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1));
    for (const auto& batch : data.epoch(0)) {
      strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
        ctx.scale_loss(value_of(model, ctx, part)).backward();
        optimizer.step(ctx);
      });
    }
    for (int i = 0; i < 2; ++i) {
      for (const auto& batch : data.epoch(1 + i)) {
        strategy.evaluate(batch, [&](ReplicaContext& ctx, const Batch& part) {
          metric.update(ctx, value_of(model, ctx, part), part.samples());
        });
      }
      expected.push_back(metric.result());
    }
  }
  ParameterServerStrategy strategy({.staleness = 0, .workers = 3, .seed = 7});
  auto model = strategy.make_module(net);
  const metrics::Mean metric(strategy, "loss");
  const auto data = strategy.distribute(testing::some_samples(48), {.global_batch = 12});
  const auto validation = strategy.distribute(testing::some_samples(48), {.global_batch = 12});
  const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1));
  const auto step = strategy.step("train", [&](WorkerContext& ctx) {
    const Batch part = data.next(ctx);
    ctx.scale_loss(value_of(model, ctx, part)).backward();
    ctx.push();
  });
  const auto judge = strategy.step("judge", [&](WorkerContext& ctx, const Batch& part) {
    metric.update(ctx, value_of(model, ctx, part), part.samples());
  });
  strategy.coordinate([&](Coordinator& coordinator) {
    for (int i = 0; i < 12; ++i) coordinator.schedule(step);
    for (int i = 0; i < 2; ++i) {
      coordinator.evaluate(validation, judge);
      EXPECT_EQ(metric.result(), expected[static_cast<std::size_t>(i)]);
    }
  });
}

TEST(Evaluate, SeesOneStateWhileOtherThreadsScheduleAndAssign) {
  ParameterServerStrategy strategy({.workers = 2});
  const Variable weight = strategy.make_variable(torch::zeros({}), {.name = "w", .trainable = false});
  const auto data = strategy.distribute(testing::some_samples(64), {.global_batch = 1});
  const auto add = strategy.step("add", [&](WorkerContext& ctx) { weight.assign_add(ctx, torch::ones({})); });
  strategy.coordinate([&](Coordinator& coordinator) {
    std::atomic<bool> is_over = false;
    std::thread other([&] {
      for (int i = 0; !is_over; ++i) {
        if (i % 2 == 0) {
          coordinator.schedule(add);
        } else {
          weight.assign_add(torch::ones({}));
        }
      }
    });
    for (int i = 0; i < 10; ++i) {
      std::mutex mutex;
      std::set<double> seen;
      coordinator.evaluate(data, [&](WorkerContext& ctx, const Batch&) {
        const double value = weight.value(ctx).item<double>();
        const std::lock_guard<std::mutex> lock(mutex);
        seen.insert(value);
      });
      EXPECT_EQ(seen.size(), 1);
    }
    is_over = true;
    other.join();
  });
}

TEST(Evaluate, ThatThrowsLeavesNothingAndGoesOnAfterwards) {
  ParameterServerStrategy strategy({.workers = 2});
  const metrics::Mean metric(strategy, "loss");
  const auto data = strategy.distribute(testing::some_samples(20), {.global_batch = 2});
  strategy.coordinate([&](Coordinator& coordinator) {
    std::atomic<bool> fails = true;
    std::atomic<int> under_way = 0;
    const auto judge = [&](WorkerContext& ctx, const Batch& part) {
      ++under_way;
      metric.update(ctx, torch::ones({part.size()}));
      const bool is_bad = fails && part.ids[0].item<int64_t>() >= 10;
      --under_way;
      if (is_bad) throw std::invalid_argument("bad sample");
      return 2.0F;
    };
    const auto error = testing::error_from<ReplicaError>([&] { coordinator.evaluate(data, judge); });
    EXPECT_EQ(under_way, 0);
    EXPECT_EQ(error.step(), 0);
    EXPECT_THROW(std::rethrow_if_nested(error), std::invalid_argument);
    EXPECT_EQ(metric.count(), 0);
    fails = false;
    EXPECT_EQ(coordinator.evaluate(data, judge), 2.0);
    EXPECT_EQ(metric.count(), 20);
    EXPECT_NO_THROW(coordinator.join());
  });
}

TEST(Evaluate, ThrowsTheFirstErrorOfStepsBefore) {
  ParameterServerStrategy strategy({.workers = 2});
  const auto data = strategy.distribute(testing::some_samples(4), {.global_batch = 2});
  const auto bad = strategy.step("bad", [](WorkerContext&) { throw std::invalid_argument("no"); });
  strategy.coordinate([&](Coordinator& coordinator) {
    coordinator.schedule(bad);
    const auto judge = [](WorkerContext&, const Batch&) { return 1; };
    EXPECT_THROW(coordinator.evaluate(data, judge), ReplicaError);
    EXPECT_EQ(coordinator.evaluate(data, judge), 1.0);
  });
}

TEST(Evaluate, RefusesWhatAnEvaluationHasNot) {
  Trained run({.workers = 2});
  const auto streams = run.strategy.distribute_to_workers(
      [](const InputContext&) { return data::from_dataset(testing::some_samples(4)); });
  const auto inside = run.strategy.step("inside", [&](WorkerContext&) {});
  run.strategy.coordinate([&](Coordinator& coordinator) {
    coordinator.evaluate(run.validation, [&](WorkerContext& ctx, const Batch&) {
      expect_error<UsageError>([&] { ctx.push(); }, "LS-EVALUATE", {"push"});
      expect_error<UsageError>([&] { run.data.next(ctx); }, "LS-EVALUATE", {"DistributedDataset::next"});
      expect_error<UsageError>([&] { streams.next(ctx); }, "LS-EVALUATE", {"WorkerStreams::next"});
      expect_error<UsageError>([&] { coordinator.schedule(inside); }, "LS-INSIDE-STEP", {"schedule"});
    });
    const auto rows = [](WorkerContext&, const Batch& part) { return part.target.to(torch::kFloat); };
    expect_error<UsageError>([&] { coordinator.evaluate(run.validation, rows); }, "LS-EVALUATE", {"4", "1"});
    const auto none = run.strategy.distribute(testing::some_samples(0), {.global_batch = 4});
    expect_error<DataError>([&] { coordinator.evaluate(none, rows); }, "LS-NO-SAMPLES", {});
  });
  expect_error<UsageError>([&] { run.strategy.evaluate([](ReplicaContext&) {}); }, "LS-SCHEDULE",
                           {"coordinator.evaluate"});
}

/// What steps add to metrics counts with them.
TEST(MetricsInSteps, CountWithTheirStepOrNotAtAll) {
  for (const std::optional<int64_t> staleness : {std::optional<int64_t>(), std::optional<int64_t>(0)}) {
    ParameterServerStrategy strategy({.staleness = staleness, .workers = 2, .seed = 7});
    const metrics::Mean mean(strategy, "mean");
    const metrics::Accuracy accuracy(strategy, "accuracy");
    const metrics::Throughput throughput(strategy, "throughput");
    const auto step = strategy.step("step", [&](WorkerContext& ctx, int64_t number, bool fails) {
      mean.update(ctx, torch::full({2}, static_cast<double>(number)));
      mean.update(ctx, torch::full({}, static_cast<double>(number)), 2);
      accuracy.update(ctx, torch::tensor({number % 2}), torch::tensor({int64_t{1}}));
      throughput.update(ctx, 3);
      if (fails) throw std::runtime_error("no");
    });
    strategy.coordinate([&](Coordinator& coordinator) {
      for (int64_t i = 0; i < 6; ++i) coordinator.schedule(step, i, false);
      coordinator.join();
      EXPECT_EQ(mean.result(), 2.5);
      EXPECT_EQ(mean.count(), 24);
      EXPECT_EQ(accuracy.result(), 0.5);
      EXPECT_EQ(throughput.count(), 18);
      coordinator.schedule(step, int64_t{100}, true);
      EXPECT_THROW(coordinator.join(), ReplicaError);
      EXPECT_EQ(mean.count(), 24);
      EXPECT_EQ(throughput.count(), 18);
      mean.reset();
      EXPECT_TRUE(std::isnan(mean.result()));
    });
    const auto late = strategy.step("late", [&](WorkerContext& ctx) {
      ctx.push();
      expect_error<UsageError>([&] { mean.update(ctx, torch::ones({1})); }, "LS-PUSH", {"'mean'"});
    });
    strategy.coordinate([&](Coordinator& coordinator) { coordinator.schedule(late).get(); });
  }
}

}  // namespace
}  // namespace lockstep
