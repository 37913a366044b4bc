// Mistakes with parameter servers that would go unnoticed, or crash.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/log.h"
#include "lockstep/server/parameter_server.h"
#include "tests/server/small_net.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::expect_step_error;
using torch::Tensor;

bool has_finding(const Strategy& strategy, const std::string& code) {
  const auto all = strategy.findings();
  return std::ranges::any_of(all, [&](const auto& one) { return one.code == code; });
}

template <class MakeOptimizer>
void expect_finding_of(const MakeOptimizer& make_optimizer, bool is_found) {
  ParameterServerStrategy strategy({.workers = 2, .seed = 7});
  const auto model = strategy.make_module([] { return std::make_shared<testing::SmallNet>(); });
  const auto ours = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1));
  const Variable bias = model.variables().back();
  const auto step = strategy.step("step", [&](WorkerContext& ctx) {
    const auto& net = model(ctx);
    bias.assign_add(ctx, torch::ones(bias.sizes()));
    net->forward(torch::ones({2, 6})).sum().backward();
    make_optimizer(*net);
    ctx.push();
  });
  strategy.coordinate([&](Coordinator& coordinator) {
    for (int k = 0; k < 4; ++k) coordinator.schedule(step);
  });
  EXPECT_EQ(has_finding(strategy, "LS-COPY-WRITTEN"), is_found);
}

TEST(Misuse, AnOptimizerOfTorchInAStepIsAFinding) {
  expect_finding_of([](testing::SmallNet&) {}, false);
  expect_finding_of([](testing::SmallNet& net) { torch::optim::Adam(net.parameters(), 0.1).step(); }, true);
}

TEST(Misuse, AnOptimizerThatWritesPastVersionCountersIsAFinding) {
  ParameterServerStrategy strategy({.workers = 2, .seed = 7});
  const auto model = strategy.make_module([] { return std::make_shared<testing::SmallNet>(); });
  const auto step = strategy.step("step", [&](WorkerContext& ctx) {
    const auto& net = model(ctx);
    const Tensor before = net->a->weight.detach().clone();
    net->forward(torch::ones({2, 6})).sum().backward();
    torch::optim::SGD(net->parameters(), 0.1).step();
    return before;
  });
  strategy.coordinate([&](Coordinator& coordinator) {
    std::vector<RemoteValue<Tensor>> values;
    for (int k = 0; k < 6; ++k) values.push_back(coordinator.schedule(step));
    for (const Tensor& one : coordinator.get(values)) EXPECT_TRUE(torch::equal(one, model.variables().front().read()));
  });
  EXPECT_TRUE(has_finding(strategy, "LS-COPY-WRITTEN"));
}

TEST(Misuse, StepsAndDataOfAnotherStrategyAreRefused) {
  ParameterServerStrategy strategy({.workers = 2});
  ParameterServerStrategy other({.workers = 2});
  const auto theirs = other.step("theirs", [](WorkerContext&) {});
  auto data = other.distribute(testing::some_samples(8), {.global_batch = 2});
  const auto take = strategy.step("take", [&](WorkerContext& ctx) { static_cast<void>(data.next(ctx)); });
  strategy.coordinate([&](Coordinator& coordinator) {
    expect_error<UsageError>([&] { coordinator.schedule(theirs); }, "LS-OTHER-STRATEGY", {"'theirs'"});
    expect_step_error<UsageError>([&] { coordinator.schedule(take).get(); }, "LS-OTHER-STRATEGY", {"step 0"});
  });
}

TEST(Misuse, ASecondBatchOfADataSetInAStepIsRefused) {
  ParameterServerStrategy strategy({.workers = 2});
  auto data = strategy.distribute(testing::some_samples(8), {.global_batch = 2});
  auto other = strategy.distribute(testing::some_samples(8), {.global_batch = 2});
  const auto take = strategy.step("take", [&](WorkerContext& ctx) {
    static_cast<void>(data.next(ctx));
    static_cast<void>(other.next(ctx));
    if (ctx.step() == 3) static_cast<void>(data.next(ctx));
  });
  strategy.coordinate([&](Coordinator& coordinator) {
    for (int k = 0; k < 4; ++k) coordinator.schedule(take);
    expect_step_error<UsageError>([&] { coordinator.join(); }, "LS-BATCH", {"step 3"});
  });
}

TEST(Misuse, ACoordinatorWhoseRunHasEndedSaysSo) {
  ParameterServerStrategy strategy({.workers = 2});
  const auto one = strategy.step("one", [](WorkerContext&) { return 1.0; });
  const auto data = strategy.distribute(testing::some_samples(4), {.global_batch = 2});
  Coordinator* kept = nullptr;
  RemoteValue<double> value;
  strategy.coordinate([&](Coordinator& coordinator) {
    kept = &coordinator;
    value = coordinator.schedule(one);
  });
  const auto expect = [](const auto& call) { expect_error<UsageError>(call, "LS-COORDINATE"); };
  expect([&] { kept->schedule(one); });
  expect([&] { kept->join(); });
  expect([&] { kept->cancel(); });
  expect([&] { static_cast<void>(kept->done()); });
  expect([&] { kept->evaluate(data, [](WorkerContext&, const Batch&) { return 1.0; }); });
  EXPECT_EQ(kept->steps(), 1);
  EXPECT_EQ(value.get(), 1.0);  // it was there when the run ended
}

TEST(Misuse, ResultsOfARunThatHasEndedMayBeArguments) {
  ParameterServerStrategy strategy({.workers = 2});
  const auto one = strategy.step("one", [](WorkerContext& ctx) { return static_cast<double>(ctx.step()); });
  const auto twice = strategy.step("twice", [](WorkerContext&, double x) { return 2 * x; });
  RemoteValue<double> good;
  RemoteValue<double> cancelled;
  strategy.coordinate([&](Coordinator& coordinator) {
    for (int k = 0; k < 4; ++k) good = coordinator.schedule(one);
    coordinator.join();
    const auto bad = strategy.step("bad", [](WorkerContext&) { throw std::runtime_error("bad"); });
    const auto waits = coordinator.schedule(bad);
    EXPECT_THROW(coordinator.join(), ReplicaError);
    cancelled = RemoteValue<double>(waits.scheduled());
  });
  strategy.coordinate([&](Coordinator& coordinator) {
    EXPECT_EQ(coordinator.schedule(twice, good).get(), 6.0);
    EXPECT_THROW(coordinator.schedule(twice, cancelled), ReplicaError);
  });
}

TEST(Misuse, WorkersWhoseStreamsHaveEndedLeaveStepsToOthers) {
  ParameterServerStrategy strategy({.workers = 2});
  // Worker 1 has ten times the batches of worker 0. No step is closed before both have ended.
  auto data = strategy.distribute_to_workers([](const InputContext& input) {
    const int64_t batches = input.input_pipeline_id == 0 ? 2 : 20;
    return data::from_tensors(torch::ones({batches, 1}), torch::ones({batches})).batch(1);
  });
  const auto take = strategy.step("take", [&](WorkerContext& ctx) { static_cast<void>(data.next(ctx)); });
  strategy.coordinate([&](Coordinator& coordinator) {
    std::vector<RemoteValue<void>> values;
    for (int k = 0; k < 12; ++k) values.push_back(coordinator.schedule(take));
    coordinator.join();
    int closed = 0;
    for (const auto& one : values) {
      try {
        one.get();
      } catch (const EndOfStream&) {
        ++closed;
      }
    }
    EXPECT_LE(closed, 1);  // that in which worker 0 has found its end
  });
}

TEST(Misuse, ARoundThatIsNotFullHasNoAbsentGradients) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  {
    ParameterServerStrategy strategy({.staleness = 0, .workers = 3});
    const auto model = strategy.make_module([] { return std::make_shared<testing::SmallNet>(); });
    const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1));
    auto data = strategy.distribute(testing::some_samples(9), {.global_batch = 9});
    const auto train = strategy.step("train", [&](WorkerContext& ctx) {
      const Batch batch = data.next(ctx);
      ctx.scale_loss(torch::nn::functional::cross_entropy(model(ctx)->forward(batch.input), batch.target)).backward();
      ctx.push();
    });
    strategy.coordinate([&](Coordinator& coordinator) { coordinator.schedule(train); });
  }
  set_log_sink({});
  EXPECT_FALSE(std::ranges::any_of(lines, [](const std::string& line) { return line.find("gradient") != line.npos; }));
}

}  // namespace
}  // namespace lockstep
