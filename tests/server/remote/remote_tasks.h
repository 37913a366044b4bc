// Tasks of a run of parameter servers that talk over sockets, each of which is a thread of the test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/cluster/cluster_spec.h"
#include "lockstep/core/error.h"
#include "tests/support/free_port.h"

namespace lockstep::testing {

/// The cluster of a chief, workers and servers on the loopback interface; only the chief's port is known beforehand.
inline ClusterSpec cluster_of_tasks(int64_t workers, int64_t servers, uint16_t port) {
  ClusterSpec spec;
  spec.jobs = {{"chief", {"127.0.0.1:" + std::to_string(port)}},
               {"worker", std::vector<std::string>(static_cast<std::size_t>(workers))},
               {"ps", std::vector<std::string>(static_cast<std::size_t>(servers))}};
  spec.job = "chief";
  spec.source = "the test";
  spec.secret = Secret("a secret of the test");
  return spec;
}

/// How a task has ended.
struct TaskResult {
  std::string task;   // "worker 1"
  int code = -1;      // what its program returned
  std::string error;  // what it threw; empty: nothing
};

/// Runs `program(spec)` as each task, in a thread of its own, and as the chief in this thread. The chief's result is
/// the first one, then those of workers, then those of servers.
inline std::vector<TaskResult> run_tasks(int64_t workers, int64_t servers,
                                         const std::function<int(const ClusterSpec&)>& program) {
  const ClusterSpec chief = cluster_of_tasks(workers, servers, free_port());
  std::vector<ClusterSpec> specs{chief};
  for (const auto& [job, count] : {std::pair("worker", workers), std::pair("ps", servers)}) {
    for (int64_t task = 0; task < count; ++task) {
      specs.push_back(chief);
      specs.back().job = job;
      specs.back().task = task;
    }
  }
  std::vector<TaskResult> results(specs.size());
  const auto run = [&](std::size_t i) {
    results[i].task = specs[i].job + " " + std::to_string(specs[i].task);
    try {
      results[i].code = program(specs[i]);
    } catch (const std::exception& error) {
      results[i].error = message_of(std::current_exception());
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < specs.size(); ++i) threads.emplace_back(run, i);
  run(0);
  for (std::thread& one : threads) one.join();
  return results;
}

inline void expect_all_ended_well(const std::vector<TaskResult>& results) {
  for (const TaskResult& one : results) {
    EXPECT_EQ(one.code, 0) << one.task << ": " << one.error;
  }
}

inline bool is_chief(const ClusterSpec& spec) { return spec.job == "chief"; }

}  // namespace lockstep::testing
