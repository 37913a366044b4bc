// What a scheduled step sees, and what it leaves behind.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "lockstep/server/parameter_server.h"
#include "tests/server/small_net.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using testing::expect_error;
using torch::Tensor;

TEST(ScheduledStep, ThatDoesNotCountLeavesNothingOnItsWorker) {
  ParameterServerStrategy strategy({.workers = 1, .seed = 7});
  const auto model = strategy.make_module([] { return std::make_shared<testing::SmallNet>(); });
  const Variable weight = model.variables().front();
  const auto step = strategy.step("step", [&](WorkerContext& ctx) {
    const auto& net = model(ctx);
    const Tensor before = net->a->weight.detach().clone();
    if (ctx.step() == 0) {
      weight.assign_add(ctx, torch::ones(weight.sizes()));
      EXPECT_TRUE(torch::equal(net->a->weight, before + 1));
      throw std::runtime_error("no");
    }
    return before;
  });
  const Tensor begin = weight.read();
  strategy.coordinate([&](Coordinator& coordinator) {
    EXPECT_THROW(coordinator.schedule(step).get(), ReplicaError);
    EXPECT_TRUE(torch::equal(coordinator.schedule(step).get(), begin));
  });
  EXPECT_TRUE(torch::equal(weight.read(), begin));
}

TEST(ScheduledStep, AddsTheGradientsOfAVariableThatItUsesTwice) {
  ParameterServerStrategy strategy({.workers = 1, .seed = 7});
  const auto model = strategy.make_module([] { return torch::nn::Linear(torch::nn::LinearOptions(3, 1).bias(false)); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(1.0));
  const Variable weight = model.variables().front();
  const auto step = strategy.step("step", [&](WorkerContext& ctx) {
    const Tensor itself = weight.value(ctx).sum();
    (itself + 2 * model(ctx)->forward(torch::ones({1, 3})).sum()).backward();
    ctx.push();
  });
  const Tensor before = weight.read();
  strategy.coordinate([&](Coordinator& coordinator) { coordinator.schedule(step).get(); });
  EXPECT_TRUE(torch::allclose(weight.read(), before - 3));
}

TEST(ScheduledStep, RefusesCallsOfTheProgramAndChangesAfterThePush) {
  ParameterServerStrategy strategy({.workers = 2});
  const Variable counter = strategy.make_variable(torch::zeros({}), {.name = "c", .trainable = false});
  const auto calls = strategy.step("calls", [&](WorkerContext&) {
    expect_error<UsageError>([&] { counter.assign(torch::ones({})); }, "LS-INSIDE-STEP", {"Variable::assign"});
    expect_error<UsageError>([&] { static_cast<void>(counter.read()); }, "LS-INSIDE-STEP", {"Variable::read"});
    expect_error<UsageError>([&] { strategy.run([](ReplicaContext&) {}); }, "LS-INSIDE-STEP", {"Strategy::run"});
  });
  const auto late = strategy.step("late", [&](WorkerContext& ctx) {
    ctx.push();
    expect_error<UsageError>([&] { counter.assign_add(ctx, torch::ones({})); }, "LS-PUSH", {"'c'"});
    expect_error<UsageError>([&] { ctx.push(); }, "LS-PUSH", {"twice"});
  });
  const auto both = strategy.step("both", [&](WorkerContext& ctx) {
    expect_error<UsageError>([&] { ctx.push({.clip_global_norm = 1, .clip_value = 1}); }, "LS-OPTION", {"clip_value"});
  });
  strategy.coordinate([&](Coordinator& coordinator) {
    coordinator.schedule(calls);
    coordinator.schedule(late);
    coordinator.schedule(both);
  });
  EXPECT_EQ(counter.read().item<double>(), 0);
}

TEST(ScheduledStep, UsesNoBatchTwiceAfterAnError) {
  ParameterServerStrategy strategy({.workers = 2});
  const auto data = strategy.distribute(testing::some_samples(40), {.global_batch = 4});
  std::mutex mutex;
  std::multiset<int64_t> used;
  std::atomic<bool> fails = true;
  const auto step = strategy.step("step", [&](WorkerContext& ctx) {
    const Batch batch = data.next(ctx);
    if (ctx.step() == 3 && fails) throw std::runtime_error("no");
    const std::lock_guard<std::mutex> lock(mutex);
    for (int64_t i = 0; i < batch.size(); ++i) used.insert(batch.ids[i].item<int64_t>());
  });
  EXPECT_THROW(strategy.coordinate([&](Coordinator& coordinator) {
    for (int i = 0; i < 3; ++i) coordinator.schedule(step);
    coordinator.join();
    coordinator.schedule(step);
  }),
               ReplicaError);
  fails = false;
  strategy.coordinate([&](Coordinator& coordinator) {
    EXPECT_EQ(coordinator.steps(), 3);
    for (int i = 0; i < 6; ++i) coordinator.schedule(step);
  });
  EXPECT_EQ(used.size(), 36) << "the batch of the step that failed is left out";
  EXPECT_EQ(std::set<int64_t>(used.begin(), used.end()).size(), 36);
}

TEST(ScheduledStep, HasItsArgumentsAsTheyWereScheduled) {
  ParameterServerStrategy strategy({.workers = 1});
  std::atomic<bool> may_go_on = false;
  const auto wait = strategy.step("wait", [&](WorkerContext&) {
    while (!may_go_on) std::this_thread::yield();
  });
  const auto sum = strategy.step("sum", [](WorkerContext&, const Tensor& x) { return x.sum().item<double>(); });
  strategy.coordinate([&](Coordinator& coordinator) {
    Tensor x = torch::ones({3});
    coordinator.schedule(wait);
    const auto value = coordinator.schedule(sum, x);
    x.fill_(7);
    may_go_on = true;
    EXPECT_EQ(value.get(), 3);
  });
}

TEST(ScheduledStep, ThatForgetsToPushIsAFinding) {
  ParameterServerStrategy strategy({.workers = 1});
  const auto model = strategy.make_module([] { return torch::nn::Linear(2, 1); });
  const auto step = strategy.step("step", [&](WorkerContext& ctx) {
    model(ctx)->forward(torch::ones({1, 2})).sum().backward();
    if (ctx.step() == 1) ctx.push();
  });
  strategy.coordinate([&](Coordinator& coordinator) { coordinator.schedule(step).get(); });
  ASSERT_EQ(strategy.findings().size(), 1);
  EXPECT_EQ(strategy.findings().front().code, "LS-NOT-PUSHED");
  strategy.coordinate([&](Coordinator& coordinator) { coordinator.schedule(step).get(); });
  EXPECT_EQ(strategy.findings().size(), 1);
}

TEST(Coordinator, MustNotWaitInsideACallThatTheWorkersWaitFor) {
  ParameterServerStrategy strategy({.workers = 2});
  const auto step = strategy.step("step", [](WorkerContext&) { return 1; });
  strategy.coordinate([&](Coordinator& coordinator) {
    const auto value = coordinator.schedule(step);
    strategy.on_chief([&] {
      expect_error<UsageError>([&] { coordinator.join(); }, "LS-NESTED-CALL", {"Coordinator::join"});
      expect_error<UsageError>([&] { value.get(); }, "LS-NESTED-CALL", {"RemoteValue::get"});
      expect_error<UsageError>([&] { coordinator.schedule(step); }, "LS-NESTED-CALL", {"Coordinator::schedule"});
    });
    EXPECT_EQ(value.get(), 1);
  });
}

TEST(ScheduledStep, OfARoundWithoutScaleLossIsAFinding) {
  for (const bool scales : {true, false}) {
    ParameterServerStrategy strategy({.staleness = 0, .workers = 2, .seed = 7});
    const auto model = strategy.make_module([] { return std::make_shared<testing::SmallNet>(); });
    const auto data = strategy.distribute(testing::some_samples(8), {.global_batch = 4});
    const auto step = strategy.step("step", [&](WorkerContext& ctx) {
      const Batch part = data.next(ctx);
      const Tensor loss = torch::nn::functional::cross_entropy(model(ctx)->forward(part.input), part.target);
      (scales ? ctx.scale_loss(loss) : loss).backward();
      ctx.push();
    });
    strategy.coordinate([&](Coordinator& coordinator) {
      for (int i = 0; i < 4; ++i) coordinator.schedule(step);
    });
    const auto findings = strategy.findings();
    EXPECT_EQ(std::ranges::count(findings, "LS-LOSS-NOT-SCALED", &Finding::code), scales ? 0 : 1);
  }
}

TEST(ScheduledStep, PushesWithTheOptionsOfItsRound) {
  ParameterServerStrategy strategy({.staleness = 0, .workers = 2, .seed = 7});
  const Variable weights = strategy.make_variable(torch::ones({3}), {.name = "w"});
  const Optimizer optimizer = strategy.make_optimizer(std::vector{weights}, torch::optim::SGDOptions(1.0));
  const auto step = strategy.step("step", [&](WorkerContext& ctx) {
    weights.value(ctx).sum().backward();
    ctx.push(ctx.step() == 0 ? StepOptions{.clip_value = 0.5} : StepOptions{});
  });
  strategy.coordinate([&](Coordinator& coordinator) {
    for (int i = 0; i < 2; ++i) coordinator.schedule(step);
    const auto error = testing::error_from<ReplicaError>([&] { coordinator.join(); });
    expect_error<UsageError>([&] { std::rethrow_if_nested(error); }, "LS-PUSH", {"steps", "different options"});
  });
  EXPECT_TRUE(torch::equal(weights.read(), torch::ones({3})));
}

}  // namespace
}  // namespace lockstep
