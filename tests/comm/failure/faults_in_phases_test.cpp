// Workers that fail in each phase of a job, at random moments: while they join, and in their calls.
#include <cstdlib>
#include <random>
#include <stdexcept>

#include "lockstep/comm/network/join/refusal.h"
#include "tests/comm/faulty_workers.h"
#include "tests/support/fault_seeds.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::all_engines;
using lockstep::testing::Ending;
using lockstep::testing::fault_seeds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kLost{600};
constexpr milliseconds kJoin{1500};
constexpr milliseconds kToReport{1000};  // from the moment at which the time is over

/// Lets so much time pass in which this process computes: a fault comes at a moment, and not after something.
void pass(std::chrono::microseconds time) {
  const Time until = Clock::now() + time;
  while (Clock::now() < until) {
  }
}

WORKER_BODY(joins_and_calls) {
  if (number_from_environment("LATE") == my_worker_index()) wait_for("join now");
  report("joins");
  try {
    const auto world = join_from_environment();
    call_until_failure(*world, 0);
  } catch (const Error& error) {  // a PeerError once the run has begun, in which workers find how to share memory
    report(fmt::format("failed to join: {}", error.what()));
  }
}

WORKER_BODY(fails_at_its_call) {
  const auto world = join_from_environment();
  if (my_worker_index() != number_from_environment("FAILS")) return call_until_failure(*world, 0);
  for (int64_t call = number_from_environment("CALLS"); call > 0; --call) world->agree("again");
  report("fails");
  const std::string how = std::getenv("HOW");
  if (how == "exit") std::exit(0);
  if (how == "abort") std::abort();
  throw std::runtime_error("a mistake of the program");
}

class FaultsInPhases : public WorkerFaults {
 protected:
  /// One worker gets a signal while all join. Whenever that was, the others end in time, and name it.
  static void signal_while_joining(int signal) {
    std::mt19937 random(static_cast<unsigned>(signal));
    for (int64_t seed = 0; seed < fault_seeds(); ++seed) {
      const int64_t failed = seed % kWorkers;
      const auto started = start("joins_and_calls", {.lost_ms = kLost.count(), .join_ms = kJoin.count()});
      WorkerProcesses& workers = *started;
      workers.expect_all("joins");
      pass(std::chrono::microseconds(random() % 50'000));
      const Time when = workers.signal(failed, signal);
      for (const int64_t w : all_but(failed)) {
        // Whoever is stopped while workers connect to each other, after all have come, is named when that time is over.
        const milliseconds longest_join = kJoin + kLongestConnectAll + 2 * kGrace + kToReport;
        const Report end = workers.expect(w, "failed ", longest_join);
        EXPECT_NE(end.text.find(fmt::format("worker {}", failed)), std::string::npos) << end.text;
        const bool has_joined = end.text.starts_with("failed after ");
        const milliseconds bound = !has_joined ? longest_join : signal == SIGKILL ? seconds(1) : 3 * kLost;
        EXPECT_LT(end.when - when, bound) << end.text;
        EXPECT_EQ(workers.wait(w, seconds(10)).code, 0) << workers.output(w);
      }
      if (HasFailure()) return;
    }
  }
};

TEST_P(FaultsInPhases, AKillWhileJoiningIsNamed) { signal_while_joining(SIGKILL); }

TEST_P(FaultsInPhases, AStopWhileJoiningIsNamed) { signal_while_joining(SIGSTOP); }

TEST_P(FaultsInPhases, ALateStartIsWaitedFor) {
  for (const int64_t late : {0, 1}) {
    if (late == 0 && GetParam() != "shared-memory") continue;  // the test learns the port from worker 0
    const auto started = start("joins_and_calls", {.late = late});
    WorkerProcesses& workers = *started;
    for (const int64_t w : all_but(late)) workers.expect(w, "joins");
    workers.tell(late, "join now");
    if (GetParam() != "shared-memory") workers.tell(late, workers.expect(0, "port ").text.substr(5));
    workers.expect_all("in the middle");
  }
}

TEST_P(FaultsInPhases, AStopInACallIsNamed) {
  std::mt19937 random(3);
  for (int64_t seed = 0; seed < fault_seeds(); ++seed) {
    const int64_t failed = seed % kWorkers;
    const auto started = start("joins_and_calls", {.lost_ms = kLost.count()});
    WorkerProcesses& workers = *started;
    workers.expect_all("in the middle");
    pass(std::chrono::microseconds(random() % 5000));
    const Time when = workers.signal(failed, SIGSTOP);
    expect_one_reason(workers, all_but(failed), fmt::format("worker {} (process {}", failed, workers.pid(failed)), when,
                      3 * kLost);
    expect_members(workers, all_but(failed), PeerError::Noticed::kSilent, failed, -1, "before its first step");
    if (HasFailure()) return;
  }
}

TEST_P(FaultsInPhases, AnEndOfTheProgramInACallIsNamed) {
  using enum PeerError::Noticed;
  struct Way {
    const char* how;
    PeerError::Noticed noticed;
    int code;
  };
  std::mt19937 random(4);
  for (const Way& way : {Way{"exit", kExited, 0}, Way{"abort", kGone, -1}, Way{"exception", kException, 3}}) {
    for (int64_t seed = 0; seed < fault_seeds(); ++seed) {
      const int64_t failed = seed % kWorkers;
      const auto started = start("fails_at_its_call", {.how = way.how, .fails = failed, .calls = 1 + random() % 500});
      WorkerProcesses& workers = *started;
      const Report fails = workers.expect(failed, "fails");
      expect_one_reason(workers, all_but(failed), fmt::format("worker {} (process {}", failed, workers.pid(failed)),
                        fails.when, seconds(2));
      expect_members(workers, all_but(failed), way.noticed, failed, -1, "before its first step");
      EXPECT_EQ(workers.wait(failed).code, way.code);
      if (HasFailure()) return;
    }
  }
}

/// Two in the suite, all by scripts/test-faults.
std::vector<std::string> engines() {
  if (all_engines()) return {"shared-memory", "tls", "tcp", "ucx", "mixed", "rounds"};
  return {"shared-memory", "tls"};
}
INSTANTIATE_TEST_SUITE_P(Engines, FaultsInPhases, ::testing::ValuesIn(engines()),
                         [](const auto& one) { return one.param == "shared-memory" ? "SharedMemory" : one.param; });

}  // namespace
}  // namespace lockstep::internal
