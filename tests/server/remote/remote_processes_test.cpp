// Training with parameter servers whose tasks are processes, which are killed and stopped.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/server/parameter_server.h"
#include "tests/server/remote/remote_tasks.h"
#include "tests/support/worker_processes.h"

namespace lockstep {
namespace {

using testing::report;
using testing::WorkerProcesses;
using TaskEnvironment = WorkerProcesses::Environment;
using std::chrono::seconds;

constexpr int64_t kWorkers = 2;
constexpr int64_t kServers = 2;

std::string variable_of(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Each step adds 1 to a counter of which each server has a shard, and to one on one server. The chief schedules steps
/// until it is told to finish, and then reports how many count and what the counters say. Every task reports its first
/// step, and how it ends.
WORKER_BODY(counts) {
  ClusterSpec spec =
      testing::cluster_of_tasks(kWorkers, kServers, static_cast<uint16_t>(std::stoi(variable_of("PORT"))));
  spec.job = variable_of("JOB");
  spec.task = std::stoll(variable_of("TASK"));
  ParameterServerStrategy strategy({.cluster = spec,
                                    .partitioner = fixed_shards_partitioner(kServers),
                                    .timeouts = {.join = seconds(60), .lost = seconds(2)}});
  const Variable a = strategy.make_variable(torch::zeros({1000}), {.name = "a", .trainable = false});
  const Variable b = strategy.make_variable(torch::zeros({}), {.name = "b", .trainable = false});
  std::atomic<bool> has_begun = false;
  const auto add = strategy.step("add", [&](WorkerContext& ctx) {
    if (!has_begun.exchange(true)) report("in a step");
    a.assign_add(ctx, torch::ones({1000}));
    b.assign_add(ctx, torch::ones({}));
  });
  try {
    const int code = strategy.coordinate([&](Coordinator& coordinator) {
      report("begun");
      std::atomic<bool> finishes = false;
      std::thread listener([&] {
        testing::wait_for("finish");
        finishes = true;
      });
      listener.detach();
      int64_t scheduled = 0;
      while (!finishes) {
        for (int i = 0; i < 20; ++i, ++scheduled) coordinator.schedule(add);
        coordinator.join();
      }
      report("scheduled " + std::to_string(scheduled) + " steps " + std::to_string(coordinator.steps()) + " a " +
             (a.read().min().equal(a.read().max()) ? std::to_string(a.read()[999].item<int64_t>()) : "torn") + " b " +
             std::to_string(b.read().item<int64_t>()));
    });
    report("code " + std::to_string(code));
  } catch (const std::exception& error) {
    report(std::string("error ") + error.what());
  }
}

TaskEnvironment environment_of(uint16_t port, const std::string& job, int64_t task) {
  return {{"PORT", std::to_string(port)}, {"JOB", job}, {"TASK", std::to_string(task)}};
}

/// The processes of a run: the chief is 0, then come workers, then servers.
class RemoteProcesses : public ::testing::Test {
 protected:
  static constexpr int64_t kChief = 0;
  static int64_t worker(int64_t task) { return 1 + task; }
  static int64_t server(int64_t task) { return 1 + kWorkers + task; }

  void begin() {
    tasks_.expect(kChief, "begun", seconds(120));
    for (int64_t w = 0; w < kWorkers; ++w) tasks_.expect(worker(w), "in a step", seconds(60));
  }
  /// Whether the counters on all servers have each step that was scheduled, once.
  void expect_exact() {
    tasks_.tell(kChief, "finish");
    const std::string text = tasks_.expect(kChief, "scheduled ", seconds(60)).text;
    const std::string number = text.substr(10, text.find(' ', 10) - 10);
    EXPECT_EQ(text, "scheduled " + number + " steps " + number + " a " + number + " b " + number);
    tasks_.expect(kChief, "code 0");
    for (int64_t s = 0; s < kServers; ++s) tasks_.expect(server(s), "code 0");
  }

  const uint16_t port_ = testing::free_port();
  WorkerProcesses tasks_{"counts", 1 + kWorkers + kServers, [this](int64_t index) {
                           if (index == 0) return environment_of(port_, "chief", 0);
                           if (index <= kWorkers) return environment_of(port_, "worker", index - 1);
                           return environment_of(port_, "ps", index - 1 - kWorkers);
                         }};
};

TEST_F(RemoteProcesses, StepsOfKilledWorkersCountOnceOnAllServers) {
  begin();
  std::vector<std::unique_ptr<WorkerProcesses>> successors;
  for (int round = 0; round < 3; ++round) {
    if (round == 0) {
      tasks_.signal(worker(1), SIGKILL);
    } else {
      successors.back()->signal(0, SIGKILL);
    }
    successors.push_back(std::make_unique<WorkerProcesses>("counts", 1, environment_of(port_, "worker", 1)));
    successors.back()->expect(0, "in a step", seconds(60));  // it has joined as a new incarnation
  }
  expect_exact();
  tasks_.expect(worker(0), "code 0");
  successors.back()->expect(0, "code 0");
}

TEST_F(RemoteProcesses, ARunGoesOnWithOneWorkerWhileTheOtherOneStands) {
  begin();
  const auto stopped = tasks_.signal(worker(1), SIGSTOP);
  expect_exact();
  EXPECT_LT(std::chrono::steady_clock::now() - stopped, seconds(40));
  tasks_.signal(worker(1), SIGCONT);
  tasks_.expect(worker(1), "error ");  // it was given up
}

TEST_F(RemoteProcesses, AServerThatIsKilledEndsAllWithItsName) {
  begin();
  const auto killed = tasks_.signal(server(1), SIGKILL);
  for (const int64_t task : {kChief, worker(0), worker(1), server(0)}) {
    const testing::Report end = tasks_.expect(task, "error ");
    EXPECT_NE(end.text.find("server 1 (process "), std::string::npos) << end.text;
    EXPECT_LT(end.when - killed, seconds(10));
  }
}

TEST_F(RemoteProcesses, AChiefThatIsKilledOrStandsEndsAllWithItsName) {
  begin();
  const auto stopped = tasks_.signal(kChief, SIGSTOP);
  for (const int64_t task : {worker(0), worker(1), server(0), server(1)}) {
    const testing::Report end = tasks_.expect(task, "error ");
    EXPECT_NE(end.text.find("the chief (process "), std::string::npos) << end.text;
    EXPECT_LT(end.when - stopped, seconds(10));
  }
}

}  // namespace
}  // namespace lockstep
