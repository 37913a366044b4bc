// Worker processes of one job under each engine, for tests of what happens when one of them fails.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/join/plug_ins.h"
#include "lockstep/comm/join/this_host.h"
#include "lockstep/comm/network/network_world.h"
#include "lockstep/comm/shared_memory/shared_memory_world.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "tests/support/worker_processes.h"

namespace lockstep::internal {

using lockstep::testing::my_worker_index;
using lockstep::testing::next_word;
using lockstep::testing::report;
using lockstep::testing::Report;
using lockstep::testing::Time;
using lockstep::testing::wait_for;
using lockstep::testing::WorkerProcesses;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kWorkers = 3;

/// 0 where it is not set.
inline int64_t number_from_environment(const char* name) {
  const char* const text = std::getenv(name);
  return text ? std::stoll(text) : 0;
}

/// Where worker 0 listens, on the others.
inline uint16_t port_of_chief = 0;

/// Worker 0 tells the test at which port it listens, and the test tells the others.
inline std::shared_ptr<World> join_network(const std::string& engine, const WorkerTimeouts& timeouts) {
  NetworkJob job{.num_workers = number_from_environment("WORKERS"),
                 .worker_index = my_worker_index(),
                 .chief = {"127.0.0.1"},
                 .own_address = "127.0.0.1",
                 .secret = "a secret of the test",
                 .must_match = "test",
                 .plaintext = engine == "tcp",
                 .most_direct = engine == "rounds" ? 0 : kMostDirect};
  // Two hosts: workers 0 and 1 of three share memory.
  if (engine == "mixed") job.host_id = 2 * job.worker_index <= job.num_workers ? "a" : "b";
  if (job.worker_index != 0) job.chief_port = port_of_chief = static_cast<uint16_t>(std::stoi(next_word()));
  auto network = std::make_unique<NetworkRendezvous>(job);
  if (job.worker_index == 0) report(fmt::format("port {}", network->port()));
  network->meet(timeouts.join);
  if (!is_plug_in(engine)) return connect_network(std::move(network), timeouts);
  const MessengerSetup setup{
      .num_workers = job.num_workers, .worker_index = job.worker_index, .network_interface = "lo"};
  return connect_network(std::move(network), timeouts, load_messenger(engine, setup), true);
}

inline std::shared_ptr<World> join_from_environment() {
  WorkerTimeouts timeouts;
  timeouts.join = milliseconds(number_from_environment("JOIN_MS"));
  timeouts.lost = milliseconds(number_from_environment("LOST_MS"));
  timeouts.stalled = milliseconds(number_from_environment("STALLED_MS"));
  timeouts.patience = milliseconds(number_from_environment("PATIENCE_MS"));
  timeouts.work = milliseconds(number_from_environment("WORK_MS"));
  const std::string engine = std::getenv("ENGINE");
  if (engine != "shared-memory") return join_network(engine, timeouts);
  return join_shared_memory({.name = std::getenv("JOB"),
                             .num_workers = number_from_environment("WORKERS"),
                             .worker_index = my_worker_index(),
                             .secret = "a secret of the test",
                             .must_match = "test"},
                            timeouts);
}

inline void report_failure(const PeerError& error, int64_t calls) {
  const PeerError::Failed& failed = error.failed();
  report(fmt::format("noticed {} of worker {}, process {} on host {}, step {}, {}", static_cast<int>(failed.noticed),
                     failed.worker, failed.process, failed.host, failed.step, failed.phase));
  report(fmt::format("failed after {} calls: {}", calls, error.what()));
}

/// Calls until it fails, and reports how many calls succeeded and why none more did.
inline void call_until_failure(World& world, std::size_t bytes) {
  const auto count = static_cast<std::size_t>(world.num_workers());
  const std::vector<std::vector<std::byte>> sent(count, std::vector<std::byte>(bytes));
  std::vector<std::vector<std::byte>> got = sent;
  const std::vector<std::span<const std::byte>> to(sent.begin(), sent.end());
  const std::vector<std::span<std::byte>> from(got.begin(), got.end());
  int64_t calls = 0;
  try {
    for (;; ++calls) {
      if (bytes > 0) {
        world.exchange(to, from);
      } else {
        world.agree("again");
      }
      if (calls == 10) report("in the middle");
    }
  } catch (const PeerError& error) {
    report_failure(error, calls);
  }
}

/// Worker 1 is at work, and all others wait for it in a call, which it makes when it is told.
inline void wait_for_work_of_worker_1() {
  set_log_sink([](LogLevel, std::string_view line) { report(fmt::format("log: {}", line)); });
  const auto world = join_from_environment();
  world->agree("all are here");
  try {
    if (my_worker_index() == 1) {
      const milliseconds limit(number_from_environment("LIMIT_MS"));
      world->set_phase({.kind = WorkerPhase::Kind::kOnChief, .step = 42, .limit = limit});
      report("works");
      wait_for("come");
      world->require_running();
      report("may go on");
    }
    world->agree("all have come");
    report("all have come");
  } catch (const PeerError& error) {
    report_failure(error, 1);
  }
}

/// Runs under each engine.
class WorkerFaults : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!is_plug_in(GetParam())) return;
    try {
      load_messenger(GetParam(), {.num_workers = kWorkers, .network_interface = "lo"});
    } catch (const ClusterError& error) {
      GTEST_SKIP() << error.what();
    }
  }

  struct Options {
    int64_t lost_ms = 60'000;
    int64_t stalled_ms = 60'000;
    int64_t patience_ms = 300'000;
    int64_t work_ms = 3'600'000;
    int64_t limit_ms = 0;  // of worker 1's work
    int64_t workers = kWorkers;
    int64_t join_ms = 300'000;
    std::string how = {};
    int64_t fails = 1;   // which worker
    uint64_t calls = 0;  // after so many calls
    int64_t late = -1;   // which worker joins when it is told
  };

  /// Workers of one job, which join under the engine of the test.
  static std::unique_ptr<WorkerProcesses> start(const char* body, const Options& options) {
    static int count = 0;
    auto workers = std::make_unique<WorkerProcesses>(
        body, options.workers,
        WorkerProcesses::Environment{{"ENGINE", GetParam()},
                                     {"JOB", fmt::format("faults-{}-{}", getpid(), ++count)},
                                     {"WORKERS", std::to_string(options.workers)},
                                     {"LOST_MS", std::to_string(options.lost_ms)},
                                     {"STALLED_MS", std::to_string(options.stalled_ms)},
                                     {"PATIENCE_MS", std::to_string(options.patience_ms)},
                                     {"WORK_MS", std::to_string(options.work_ms)},
                                     {"LIMIT_MS", std::to_string(options.limit_ms)},
                                     {"JOIN_MS", std::to_string(options.join_ms)},
                                     {"FAILS", std::to_string(options.fails)},
                                     {"CALLS", std::to_string(options.calls)},
                                     {"LATE", std::to_string(options.late)},
                                     {"HOW", options.how}});
    if (GetParam() == "shared-memory") return workers;
    const std::string port = workers->expect(0, "port ").text.substr(5);
    for (int64_t w = 1; w < options.workers; ++w) {
      if (w != options.late) workers->tell(w, port);
    }
    return workers;
  }
  static std::unique_ptr<WorkerProcesses> start(const char* body) { return start(body, Options{}); }
};

/// The reports of the survivors: all have made as many calls, and give one reason, which has these words.
inline void expect_one_reason(WorkerProcesses& workers, const std::vector<int64_t>& survivors, const std::string& words,
                              Time since, milliseconds within) {
  std::set<std::string> texts;
  for (const int64_t w : survivors) {
    const Report failed = workers.expect(w, "failed after ");
    texts.insert(failed.text);
    EXPECT_LT(failed.when - since, within) << "worker " << w << ": " << failed.text;
  }
  EXPECT_EQ(texts.size(), 1U) << fmt::format("{}", *texts.begin()) << "\nand\n" << *texts.rbegin();
  EXPECT_NE(texts.begin()->find(words), std::string::npos) << *texts.begin();
}

/// What the members of their errors say, on all survivors.
inline void expect_members(WorkerProcesses& workers, const std::vector<int64_t>& survivors, PeerError::Noticed noticed,
                           int64_t failed, int64_t step, const std::string& phase) {
  for (const int64_t w : survivors) {
    EXPECT_EQ(workers.expect(w, "noticed ").text,
              fmt::format("noticed {} of worker {}, process {} on host {}, step {}, {}", static_cast<int>(noticed),
                          failed, workers.pid(failed), host_name(), step, phase));
  }
}

constexpr const char* kAtWork = "at work in on_chief after 42 steps";

inline std::vector<int64_t> all_but(int64_t worker, int64_t workers = kWorkers) {
  std::vector<int64_t> others;
  for (int64_t w = 0; w < workers; ++w) {
    if (w != worker) others.push_back(w);
  }
  return others;
}

/// Worker 1 works until all others have said that they wait for it, three times as long as their patience; then all go
/// on together.
inline void expect_patience_with_work(WorkerProcesses& workers) {
  for (const int64_t w : all_but(1, workers.size())) {
    const std::string line = workers.expect(w, fmt::format("log: worker {} has waited", w)).text;
    EXPECT_NE(line.find("worker 1 has not come to call"), std::string::npos) << line;
    EXPECT_NE(line.find(fmt::format("worker 1 is {}, for ", kAtWork)), std::string::npos) << line;
  }
  workers.tell(1, "come");
  workers.expect(1, "may go on");
  workers.expect_all("all have come");
}

}  // namespace lockstep::internal
