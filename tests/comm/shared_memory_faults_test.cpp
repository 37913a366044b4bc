// Processes that share memory and fail: who is named, how soon, and what the others have done by then.
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
#include <string>
#include <vector>

#include "lockstep/comm/shared_memory/shared_memory_world.h"
#include "lockstep/core/error.h"
#include "tests/support/worker_processes.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::Ending;
using lockstep::testing::my_worker_index;
using lockstep::testing::report;
using lockstep::testing::Report;
using lockstep::testing::Time;
using lockstep::testing::wait_for;
using lockstep::testing::WorkerProcesses;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kWorkers = 3;

std::string number_from_environment(const char* name) {
  const char* const text = std::getenv(name);
  return text ? text : "0";
}

std::shared_ptr<World> join_from_environment() {
  WorkerTimeouts timeouts;
  timeouts.lost = milliseconds(std::stoll(number_from_environment("LOST_MS")));
  return join_shared_memory({.name = std::getenv("JOB"),
                             .num_workers = std::stoll(number_from_environment("WORKERS")),
                             .worker_index = my_worker_index(),
                             .secret = "a secret of the test",
                             .must_match = "test"},
                            timeouts);
}

WorkerProcesses::Environment job(int64_t lost_ms = 60'000, int64_t workers = kWorkers) {
  static int count = 0;
  return {{"JOB", fmt::format("faults-{}-{}", getpid(), ++count)},
          {"WORKERS", std::to_string(workers)},
          {"LOST_MS", std::to_string(lost_ms)}};
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
  if (how == "abort") world->abort("its data ended");
  if (how == "crash") std::abort();
  wait_for("never");
}

WORKER_BODY(calls_under_load) {
  const auto world = join_from_environment();
  for (int i = 0; i < 200; ++i) world->agree(std::to_string(i));
  report("done");
}

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

TEST(SharedMemoryFaults, NameAKilledWorkerWithinASecondAfterAsManyCallsOnAllSurvivors) {
  std::mt19937 random(7);
  for (const char* body : {"calls_records", "exchanges_megabytes"}) {
    for (int seed = 0; seed < 20; ++seed) {
      const int64_t killed = seed % kWorkers;
      WorkerProcesses workers(body, kWorkers, job());
      workers.expect_all("in the middle");
      // At another place of a call each time.
      const Time until = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 5000);
      while (std::chrono::steady_clock::now() < until) {
      }
      const Time when = workers.signal(killed, SIGKILL);
      expect_one_reason(workers, all_but(killed), fmt::format("worker {} (process {})", killed, workers.pid(killed)),
                        when, seconds(1));
      if (HasFailure()) return;
    }
  }
}

TEST(SharedMemoryFaults, NameAWorkerThatIsKilledWhileTheOthersWaitForIt) {
  WorkerProcesses workers("waits_for_worker_1", kWorkers, job());
  workers.expect_all("joined");
  const Time when = workers.signal(1, SIGKILL);
  expect_one_reason(workers, {0, 2}, "worker 1 (process", when, seconds(1));
}

TEST(SharedMemoryFaults, OfTwoWorkersAtOnceLeaveTheThirdWithOneOfThem) {
  for (const int64_t survivor : {0, 1, 2}) {
    WorkerProcesses workers("calls_records", kWorkers, job());
    workers.expect_all("in the middle");
    Time when;
    for (const int64_t w : all_but(survivor)) when = workers.signal(w, SIGKILL);
    expect_one_reason(workers, {survivor}, "is gone", when, seconds(1));
  }
}

TEST(SharedMemoryFaults, NameAFrozenWorkerWhichThenFindsThatTheRunHasEnded) {
  constexpr int64_t kLostMs = 1000;
  for (const int64_t frozen : {0, 1}) {
    WorkerProcesses workers("calls_records", kWorkers, job(kLostMs));
    workers.expect_all("in the middle");
    const Time when = workers.signal(frozen, SIGSTOP);
    expect_one_reason(workers, all_but(frozen), "is frozen", when, milliseconds(2 * kLostMs));
    workers.signal(frozen, SIGCONT);
    EXPECT_NE(workers.expect(frozen, "failed after ").text.find(fmt::format("worker {} (process", frozen)),
              std::string::npos);
  }
}

TEST(SharedMemoryFaults, DoNotNameAWorkerThatStopsForAShortTime) {
  WorkerProcesses workers("calls_under_load", kWorkers, job(/*lost_ms=*/60'000));
  workers.signal(1, SIGSTOP);
  workers.signal(1, SIGCONT);
  workers.expect_all("done");
}

TEST(SharedMemoryFaults, TellHowAWorkerEnded) {
  const std::map<std::string, std::string> words{{"exit", "worker 1 (process {}) ended its program"},
                                                 {"leave", "worker 1 (process {}) left the run"},
                                                 {"abort", "worker 1 aborted the run: its data ended"},
                                                 {"crash", "worker 1 (process {}) is gone"}};
  for (const auto& [how, text] : words) {
    auto environment = job();
    environment["HOW"] = how;
    WorkerProcesses workers("ends_as_told", kWorkers, environment);
    const Report middle = workers.expect(1, "in the middle");
    expect_one_reason(workers, {0, 2}, fmt::format(fmt::runtime(text), workers.pid(1)), middle.when, seconds(5));
  }
}

TEST(SharedMemoryFaults, AreNotSeenWhereEightWorkersShareFewCores) {
  constexpr int64_t kMany = 8;
  WorkerProcesses workers("calls_under_load", kMany, job(/*lost_ms=*/5000, kMany));
  workers.expect_all("done", seconds(120));
  for (int64_t w = 0; w < kMany; ++w) EXPECT_EQ(workers.wait(w).code, 0);
}

}  // namespace
}  // namespace lockstep::internal
