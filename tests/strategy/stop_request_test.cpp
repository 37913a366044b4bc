// A worker that is asked for a stop: all workers learn of it after the same step.
#include "lockstep/core/process/stop_request.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <random>
#include <set>
#include <stdexcept>
#include <string>

#include "lockstep/comm/join/join.h"
#include "tests/support/fault_seeds.h"
#include "tests/support/free_port.h"
#include "tests/support/worker_processes.h"
#include "tests/support/workers.h"

namespace lockstep {
namespace {

using testing::OneOfSeveral;
using testing::report;
using testing::Report;
using testing::WorkerProcesses;

/// Steps until a stop is asked for, with some work of another length in each.
void run_until_stop(Strategy& strategy) {
  std::mt19937 random(static_cast<unsigned>(strategy.worker_index()));
  while (!strategy.stop_requested()) {
    strategy.run([&](ReplicaContext& ctx) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 3000);
      while (std::chrono::steady_clock::now() < end) {
      }
      ctx.all_reduce(Reduction::kSum, torch::ones({2}));
    });
    if (strategy.step() == 3) report("in the middle");
  }
}

WORKER_BODY(runs_until_stop) {
  torch::set_num_threads(1);
  stop_on_signal();
  OneOfSeveral strategy(join(resolve_cluster(), {.engine = "shared-memory"}), 3, 1, nullptr);
  run_until_stop(strategy);
  report("ended after step " + std::to_string(strategy.step()));
}

TEST(StopRequests, OfOneProcessEndAllAfterTheSameStep) {
  constexpr int64_t kWorkers = 3;
  std::mt19937 random(5);
  for (int64_t seed = 0; seed < testing::fault_seeds(10); ++seed) {
    const std::string chief = "127.0.0.1:" + std::to_string(testing::free_port());
    WorkerProcesses workers("runs_until_stop", kWorkers, [&](int64_t w) {
      return WorkerProcesses::Environment{
          {"LOCKSTEP_NUM_WORKERS", std::to_string(kWorkers)},
          {"LOCKSTEP_WORKER_INDEX", std::to_string(w)},
          {"LOCKSTEP_CHIEF_ADDRESS", chief},
          {"LOCKSTEP_JOB_ID", "stop-test-" + std::to_string(getpid()) + "-" + std::to_string(seed)}};
    });
    workers.expect_all("in the middle", std::chrono::seconds(120));
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 10'000);
    while (std::chrono::steady_clock::now() < until) {
    }
    workers.signal(static_cast<int64_t>(random() % kWorkers), SIGTERM);
    std::set<std::string> ends;
    for (const Report& one : workers.expect_all("ended after step ")) ends.insert(one.text);
    EXPECT_EQ(ends.size(), 1U) << *ends.begin() << " and " << *ends.rbegin();
    for (int64_t w = 0; w < kWorkers; ++w) EXPECT_EQ(workers.wait(w).code, 0) << workers.output(w);
    if (HasFailure()) return;
  }
}

TEST(StopRequests, AreKnownAfterARunAndNotBefore) {
  internal::forget_stop_request();
  MirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = 2});
  const auto run = [&] { strategy.run([](ReplicaContext&) {}); };
  run();
  EXPECT_FALSE(strategy.stop_requested());
  request_stop();
  EXPECT_FALSE(strategy.stop_requested());
  EXPECT_THROW(strategy.run([](ReplicaContext&) { throw std::runtime_error("a mistake"); }), ReplicaError);
  EXPECT_FALSE(strategy.stop_requested());  // that run was not completed
  run();
  EXPECT_TRUE(strategy.stop_requested());
  internal::forget_stop_request();
}

}  // namespace
}  // namespace lockstep
