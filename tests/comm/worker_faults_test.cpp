// Worker processes that fail, under each engine: who is named, how soon, and what the others have done by then.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/comm/network/network_world.h"
#include "lockstep/comm/plug_ins.h"
#include "lockstep/comm/shared_memory/shared_memory_world.h"
#include "lockstep/core/error.h"
#include "tests/support/worker_processes.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::Ending;
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

int64_t number_from_environment(const char* name) {
  const char* const text = std::getenv(name);
  return text ? std::stoll(text) : 0;
}

/// Worker 0 tells the test at which port it listens, and the test tells the others.
std::shared_ptr<World> join_network(const std::string& engine, const WorkerTimeouts& timeouts) {
  NetworkJob job{.num_workers = number_from_environment("WORKERS"),
                 .worker_index = my_worker_index(),
                 .chief = {"127.0.0.1"},
                 .own_address = "127.0.0.1",
                 .secret = "a secret of the test",
                 .must_match = "test",
                 .plaintext = engine == "tcp"};
  // Two hosts: workers 0 and 1 of three share memory.
  if (engine == "mixed") job.host_id = 2 * job.worker_index <= job.num_workers ? "a" : "b";
  if (job.worker_index != 0) job.chief_port = static_cast<uint16_t>(std::stoi(next_word()));
  auto network = std::make_unique<NetworkRendezvous>(job);
  if (job.worker_index == 0) report(fmt::format("port {}", network->port()));
  network->meet(timeouts.join);
  if (!is_plug_in(engine)) return connect_network(std::move(network), timeouts);
  const MessengerSetup setup{
      .num_workers = job.num_workers, .worker_index = job.worker_index, .network_interface = "lo"};
  return connect_network(std::move(network), timeouts, load_messenger(engine, setup), true);
}

std::shared_ptr<World> join_from_environment() {
  WorkerTimeouts timeouts;
  timeouts.lost = milliseconds(number_from_environment("LOST_MS"));
  const std::string engine = std::getenv("ENGINE");
  if (engine != "shared-memory") return join_network(engine, timeouts);
  return join_shared_memory({.name = std::getenv("JOB"),
                             .num_workers = number_from_environment("WORKERS"),
                             .worker_index = my_worker_index(),
                             .secret = "a secret of the test",
                             .must_match = "test"},
                            timeouts);
}

/// Calls until it fails, and reports how many calls succeeded and why none more did.
void call_until_failure(World& world, std::size_t bytes) {
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
    report(fmt::format("failed after {} calls: {}", calls, error.what()));
  }
}

WORKER_BODY(calls_records) {
  const auto world = join_from_environment();
  call_until_failure(*world, 0);
}

WORKER_BODY(exchanges_megabytes) {
  const auto world = join_from_environment();
  call_until_failure(*world, 3'000'001);
}

/// Worker 1 is elsewhere, and all others wait for it in a call.
WORKER_BODY(waits_for_worker_1) {
  const auto world = join_from_environment();
  report("joined");
  if (my_worker_index() == 1) {
    wait_for("never");
  } else {
    call_until_failure(*world, 0);
  }
}

WORKER_BODY(ends_as_told) {
  auto world = join_from_environment();
  world->agree("all are here");
  report("in the middle");
  if (my_worker_index() != 1) {
    call_until_failure(*world, 0);
    return;
  }
  const std::string how = std::getenv("HOW");
  if (how == "exit") std::exit(0);
  if (how == "leave") world.reset();
  if (how == "throw") {
    // Out of all that holds the World, as out of main(); then the process goes on, so that nothing else tells the end.
    try {
      const std::shared_ptr<World> held = std::move(world);
      throw std::runtime_error("its own mistake");
    } catch (const std::runtime_error&) {
    }
  }
  if (how == "abort") world->abort("its data ended");
  if (how == "crash") std::abort();
  wait_for("never");
}

WORKER_BODY(calls_under_load) {
  const auto world = join_from_environment();
  for (int i = 0; i < 200; ++i) world->agree(std::to_string(i));
  report("done");
}

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
    int64_t workers = kWorkers;
    std::string how = {};
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
                                     {"HOW", options.how}});
    if (GetParam() == "shared-memory") return workers;
    const std::string port = workers->expect(0, "port ").text.substr(5);
    for (int64_t w = 1; w < options.workers; ++w) workers->tell(w, port);
    return workers;
  }
  static std::unique_ptr<WorkerProcesses> start(const char* body) { return start(body, Options{}); }
};

/// The reports of the survivors: all have made as many calls, and give one reason, which has these words.
void expect_one_reason(WorkerProcesses& workers, const std::vector<int64_t>& survivors, const std::string& words,
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

std::vector<int64_t> all_but(int64_t worker, int64_t workers = kWorkers) {
  std::vector<int64_t> others;
  for (int64_t w = 0; w < workers; ++w) {
    if (w != worker) others.push_back(w);
  }
  return others;
}

TEST_P(WorkerFaults, NameAKilledWorkerWithinASecondAfterAsManyCallsOnAllSurvivors) {
  std::mt19937 random(7);
  for (const char* body : {"calls_records", "exchanges_megabytes"}) {
    for (int seed = 0; seed < 20; ++seed) {
      const int64_t killed = seed % kWorkers;
      const auto started = start(body);
      WorkerProcesses& workers = *started;
      workers.expect_all("in the middle");
      // At another place of a call each time.
      const Time until = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 5000);
      while (std::chrono::steady_clock::now() < until) {
      }
      const Time when = workers.signal(killed, SIGKILL);
      expect_one_reason(workers, all_but(killed), fmt::format("worker {} (process {}", killed, workers.pid(killed)),
                        when, seconds(1));
      if (HasFailure()) return;
    }
  }
}

TEST_P(WorkerFaults, NameAWorkerThatIsKilledWhileTheOthersWaitForIt) {
  const auto started = start("waits_for_worker_1");
  WorkerProcesses& workers = *started;
  workers.expect_all("joined");
  const Time when = workers.signal(1, SIGKILL);
  expect_one_reason(workers, {0, 2}, "worker 1 (process", when, seconds(1));
}

TEST_P(WorkerFaults, OfTwoWorkersAtOnceLeaveTheThirdWithOneOfThem) {
  for (const int64_t survivor : {0, 1, 2}) {
    const auto started = start("calls_records");
    WorkerProcesses& workers = *started;
    workers.expect_all("in the middle");
    Time when;
    for (const int64_t w : all_but(survivor)) when = workers.signal(w, SIGKILL);
    expect_one_reason(workers, {survivor}, "is gone", when, seconds(1));
  }
}

TEST_P(WorkerFaults, NameAFrozenWorkerWhichThenFindsThatTheRunHasEnded) {
  constexpr int64_t kLostMs = 1000;
  for (const int64_t frozen : {0, 1}) {
    const auto started = start("calls_records", {.lost_ms = kLostMs});
    WorkerProcesses& workers = *started;
    workers.expect_all("in the middle");
    const Time when = workers.signal(frozen, SIGSTOP);
    expect_one_reason(workers, all_but(frozen), "is frozen", when, milliseconds(2 * kLostMs));
    workers.signal(frozen, SIGCONT);
    EXPECT_NE(workers.expect(frozen, "failed after ").text.find(fmt::format("worker {} (process", frozen)),
              std::string::npos);
  }
}

TEST_P(WorkerFaults, DoNotNameAWorkerThatStopsForAShortTime) {
  const auto started = start("calls_under_load");
  WorkerProcesses& workers = *started;
  workers.signal(1, SIGSTOP);
  workers.signal(1, SIGCONT);
  workers.expect_all("done");
}

TEST_P(WorkerFaults, TellHowAWorkerEnded) {
  const std::map<std::string, std::string> words{{"exit", "ended its program"},
                                                 {"leave", "left the run"},
                                                 {"abort", "aborted the run: its data ended"},
                                                 {"throw", "was ended by an exception"},
                                                 {"crash", "is gone"}};
  for (const auto& [how, text] : words) {
    const auto started = start("ends_as_told", {.how = how});
    WorkerProcesses& workers = *started;
    const Report middle = workers.expect(1, "in the middle");
    expect_one_reason(workers, {0, 2}, text, middle.when, seconds(5));
    EXPECT_TRUE(workers.expect(0, "failed after ").text.find("worker 1 ") != std::string::npos);
  }
}

TEST_P(WorkerFaults, AreNotSeenWhereEightWorkersShareFewCores) {
  constexpr int64_t kMany = 8;
  const auto started = start("calls_under_load", {.lost_ms = 5000, .workers = kMany});
  WorkerProcesses& workers = *started;
  workers.expect_all("done", seconds(120));
  for (int64_t w = 0; w < kMany; ++w) EXPECT_EQ(workers.wait(w).code, 0);
}

INSTANTIATE_TEST_SUITE_P(Engines, WorkerFaults, ::testing::Values("shared-memory", "tls", "tcp", "ucx", "mixed"),
                         [](const auto& one) { return one.param == "shared-memory" ? "SharedMemory" : one.param; });

}  // namespace
}  // namespace lockstep::internal
