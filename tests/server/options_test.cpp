// Options of ParameterServerStrategy and what they do.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/log.h"
#include "lockstep/server/parameter_server.h"
#include "tests/support/errors.h"
#include "tests/support/factored.h"

namespace lockstep {
namespace {

using testing::expect_error;
using torch::Tensor;
using namespace std::chrono_literals;

TEST(Options, ThatCannotBeHonouredAreRefused) {
  const auto refused = [](const ParameterServerOptions& options, const char* name) {
    expect_error<UsageError>([&] { ParameterServerStrategy strategy(options); }, "LS-OPTION", {name});
  };
  refused({.timeouts = {.step = -1ms}}, "step");
  refused({.timeouts = {.step = std::chrono::hours(24 * 366)}}, "step");
  refused({.queue = {.steps = 0}}, "steps");
  refused({.queue = {.bytes = -1}}, "bytes");
  refused({.attempts = -1}, "attempts");
  refused({.staleness = 0, .wire = WireFormat::kBFloat16}, "wire");
  expect_error<UsageError>([] { ParameterServerStrategy strategy({.device = "cuda:0"}); }, "LS-DEVICE", {"'cuda:0'"});
  expect_error<UsageError>([] { ParameterServerStrategy strategy({.device = "gpu zero"}); }, "LS-DEVICE", {});
  EXPECT_NO_THROW(ParameterServerStrategy({.device = "cpu"}));
}

TEST(Options, ThatTasksThatAreProcessesLackAreRefused) {
  ClusterSpec cluster;
  cluster.jobs = {{"chief", {"127.0.0.1:1"}}, {"worker", {""}}, {"ps", {""}}};
  cluster.job = "chief";
  const auto refused = [](const ParameterServerOptions& options, const char* name) {
    expect_error<UsageError>([&] { ParameterServerStrategy strategy(options); }, "LS-OPTION", {name, "processes"});
  };
  refused({.cluster = cluster, .record = "run.rec"}, "record");
  refused({.cluster = cluster, .timeouts = {.step = 1s}}, "step");
  EXPECT_NO_THROW(ParameterServerStrategy({.cluster = cluster, .attempts = 1}));
  const testing::EnvironmentScope replay("LOCKSTEP_REPLAY", "run.rec");
  expect_error<UsageError>([&] { ParameterServerStrategy strategy({.cluster = cluster}); }, "LS-REPLAY-DIFFERS",
                           {"'chief'"});
}

TEST(Options, BFloat16RoundsEachGradientAndAddsInFloat32) {
  const auto trained = [](WireFormat wire) {
    ParameterServerStrategy strategy({.workers = 2, .wire = wire});
    const Variable weight = strategy.make_variable(torch::zeros({3}), {.name = "w"});
    const Embedding table = strategy.make_embedding({.name = "t", .rows = 4, .dim = 1, .initial = 0.0});
    const auto optimizer = strategy.make_optimizer({weight}, torch::optim::SGDOptions(1.0));
    const auto rows = strategy.make_optimizer(table, torch::optim::SGDOptions(1.0));
    const Tensor gradient = torch::tensor({1.01F, 3.1415927F, -0.1F});
    const auto step = strategy.step("step", [&](WorkerContext& ctx) {
      const Tensor row = table.look_up(ctx, torch::zeros({1}, torch::kLong));
      ((weight.value(ctx) * gradient).sum() + row.sum() * 1.01).backward();
      ctx.push();
    });
    strategy.coordinate([&](Coordinator& coordinator) {
      for (int k = 0; k < 3; ++k) coordinator.schedule(step);
    });
    return torch::cat({weight.read(), table.read(torch::zeros({1}, torch::kLong)).flatten()});
  };
  const auto three_of = [](const Tensor& gradient) { return -(gradient + gradient + gradient); };
  const Tensor exact = torch::tensor({1.01F, 3.1415927F, -0.1F, 1.01F});
  EXPECT_TRUE(torch::equal(trained(WireFormat::kExact), three_of(exact)));
  EXPECT_TRUE(torch::equal(trained(WireFormat::kBFloat16), three_of(exact.to(torch::kBFloat16).to(torch::kFloat))));
}

TEST(Options, AFullQueueLetsScheduleWait) {
  ParameterServerStrategy strategy({.workers = 1, .queue = {.steps = 2, .bytes = 100}});
  std::atomic<bool> may_end = false;
  std::atomic<int> scheduled = 0;
  const auto slow = strategy.step("slow", [&](WorkerContext&, const Tensor&) {
    while (!may_end) std::this_thread::yield();
  });
  strategy.coordinate([&](Coordinator& coordinator) {
    std::thread program([&] {
      for (int k = 0; k < 6; ++k) {
        coordinator.schedule(slow, torch::ones({10}));  // 40 bytes: two of them may wait
        ++scheduled;
      }
    });
    while (scheduled < 4) std::this_thread::yield();  // two are with the worker, and two wait
    EXPECT_EQ(scheduled, 4);
    may_end = true;
    program.join();
  });
  EXPECT_EQ(scheduled, 6);
}

/// What the log says while it lives.
class LogScope {
 public:
  LogScope() {
    set_log_sink([this](LogLevel, std::string_view line) {
      const std::lock_guard<std::mutex> lock(mutex_);
      text_ += std::string(line) + "\n";
    });
  }
  ~LogScope() { set_log_sink({}); }
  bool has(const std::string& part) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return text_.find(part) != std::string::npos;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

TEST(Options, AStepThatTakesTooLongIsGivenToAnotherWorkerAndCountsOnce) {
  LogScope log;
  ParameterServerStrategy strategy({.workers = 2, .timeouts = {.step = 50ms}});
  const Variable sum = strategy.make_variable(torch::zeros({}), {.name = "sum", .trainable = false});
  std::atomic<bool> may_end = false;
  std::atomic<int> runs = 0;
  const auto step = strategy.step("step", [&](WorkerContext& ctx) {
    if (ctx.step() == 1 && runs++ == 0) {
      while (!may_end) std::this_thread::yield();
    }
    sum.assign_add(ctx, torch::ones({}));
    ctx.push();
    return ctx.worker_index();
  });
  strategy.coordinate([&](Coordinator& coordinator) {
    std::vector<RemoteValue<int64_t>> values;
    for (int k = 0; k < 4; ++k) values.push_back(coordinator.schedule(step));
    coordinator.join();
    EXPECT_EQ(coordinator.steps(), 4);
    EXPECT_EQ(runs, 2);
    may_end = true;  // its push comes too late
  });
  EXPECT_EQ(sum.read().item<double>(), 4);
  EXPECT_TRUE(log.has("step 1 has run on worker"));
  EXPECT_TRUE(log.has("WorkerTask")) << "the log has the worker's stack";
}

TEST(Options, AStepThatAlwaysTakesTooLongIsTheFirstError) {
  LogScope log;
  for (const int64_t workers : {1, 2, 3}) {
    ParameterServerStrategy strategy({.workers = workers, .timeouts = {.step = 20ms}, .attempts = 1});
    std::atomic<bool> may_end = false;
    const auto stuck = strategy.step("stuck", [&](WorkerContext&) {
      while (!may_end) std::this_thread::yield();
    });
    const auto quick = strategy.step("quick", [](WorkerContext&) { return 1.0; });
    strategy.coordinate([&](Coordinator& coordinator) {
      const auto bad = coordinator.schedule(stuck);
      const std::string which = workers == 1 ? "worker 0" : "workers";
      expect_error<PeerError>([&] { coordinator.join(); }, "LS-PEER", {"step 0", which});
      expect_error<PeerError>([&] { bad.get(); }, "LS-PEER", {"step 0"});
      may_end = true;
      EXPECT_EQ(coordinator.schedule(quick).get(), 1.0);
    });
  }
}

}  // namespace
}  // namespace lockstep
