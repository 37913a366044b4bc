// Worker processes that fail, under each engine: who is named, how soon, and what the others have done by then.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <map>
#include <random>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

#include "lockstep/comm/message.h"
#include "lockstep/core/log.h"
#include "tests/comm/faulty_workers.h"

namespace lockstep::internal {
namespace {

WORKER_BODY(calls_records) {
  const auto world = join_from_environment();
  call_until_failure(*world, 0);
}

WORKER_BODY(exchanges_megabytes) {
  const auto world = join_from_environment();
  call_until_failure(*world, 3'000'001);
}

/// Gives a record that is a byte too long: it is refused before anything is sent.
WORKER_BODY(agrees_on_too_much) {
  const auto world = join_from_environment();
  require_record_size(kLongestRecord);
  try {
    world->agree(std::string(kLongestRecord + 1, 'x'));
    report("sent it");
  } catch (const UsageError& error) {
    report("refused: " + error.code());
  }
  report("then got " + world->agree("less").back());
}

/// Worker 1 is elsewhere, and all others wait for it in a call.
WORKER_BODY(waits_for_worker_1) {
  set_log_sink([](LogLevel, std::string_view line) {
    report(fmt::format("{}: {}", line.find(", for ") == std::string_view::npos ? "log" : "log with age", line));
  });
  const auto world = join_from_environment();
  world->set_phase({.kind = WorkerPhase::Kind::kStep, .step = 41 + my_worker_index(), .meeting = 2});
  report("joined");
  if (my_worker_index() == 1) {
    wait_for("never");
  } else {
    call_until_failure(*world, 0);
  }
}

WORKER_BODY(waits_for_work_of_worker_1) { wait_for_work_of_worker_1(); }

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

/// The sockets of this process that are connected with a port of this host, in the order in which they were made.
std::vector<int> sockets_to(uint16_t port) {
  std::vector<int> sockets;
  for (int file = 3; file < 256; ++file) {
    sockaddr_in other{};
    socklen_t size = sizeof(other);
    if (getpeername(file, reinterpret_cast<sockaddr*>(&other), &size) != 0 || other.sin_family != AF_INET) continue;
    if (ntohs(other.sin_port) == port) sockets.push_back(file);
  }
  return sockets;
}

/// Worker 1 resets one of its connections with worker 0 while all make calls.
WORKER_BODY(resets_a_connection) {
  const auto world = join_from_environment();
  std::thread resets;
  if (my_worker_index() + 1 == world->num_workers()) {  // on another host than worker 0, where there are two
    const int socket = sockets_to(port_of_chief).at(static_cast<std::size_t>(number_from_environment("HOW")));
    resets = std::thread([socket] {
      wait_for("reset it");
      report("resets it");
      const sockaddr nobody{.sa_family = AF_UNSPEC, .sa_data = {}};
      connect(socket, &nobody, sizeof(nobody));
    });
  }
  call_until_failure(*world, 0);
  if (resets.joinable()) resets.join();
}

WORKER_BODY(calls_under_load) {
  const auto world = join_from_environment();
  for (int i = 0; i < 200; ++i) world->agree(std::to_string(i));
  report("done");
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

TEST_P(WorkerFaults, LetTheOthersSayWhatTheMissingWorkerDoesAndForHowLong) {
  const auto started = start("waits_for_worker_1", {.stalled_ms = 300});
  WorkerProcesses& workers = *started;
  const std::string phase = "in step 42, after its meeting 2";
  for (const int64_t w : {0, 2}) {
    const std::string line = workers.expect(w, "log with age: ").text;
    EXPECT_NE(line.find("worker 1 has not come to call"), std::string::npos) << line;
    EXPECT_NE(line.find(fmt::format("worker 1 is {}, for ", phase)), std::string::npos) << line;
  }
  const Time when = workers.signal(1, SIGKILL);
  expect_one_reason(workers, {0, 2}, "worker 1 was " + phase, when, seconds(1));
  expect_members(workers, {0, 2}, PeerError::Noticed::kGone, 1, 42, phase);
}

TEST_P(WorkerFaults, NameAWorkerThatDoesNotComeForTooLong) {
  const auto started = start("waits_for_worker_1", {.patience_ms = 700});
  WorkerProcesses& workers = *started;
  workers.expect_all("joined");
  expect_one_reason(workers, {0, 2}, "worker 1 has not come to call", std::chrono::steady_clock::now(), seconds(5));
  expect_members(workers, {0, 2}, PeerError::Noticed::kAbsent, 1, 42, "in step 42, after its meeting 2");
}

TEST_P(WorkerFaults, AreNotThatAWorkerIsAtWorkForLongerThanThePatience) {
  const auto started = start("waits_for_work_of_worker_1", {.lost_ms = 5000, .stalled_ms = 3000, .patience_ms = 1000});
  expect_patience_with_work(*started);
}

TEST_P(WorkerFaults, EndTheRunWhereWorkTakesLongerThanItsLimitWhichTheWorkerHearsAtOnce) {
  for (const bool has_own_limit : {true, false}) {
    const auto started = has_own_limit ? start("waits_for_work_of_worker_1", {.limit_ms = 700})
                                       : start("waits_for_work_of_worker_1", {.work_ms = 700});
    WorkerProcesses& workers = *started;
    const Time when = workers.expect(1, "works").when;
    expect_one_reason(workers, {0, 2}, "worker 1 has not come to call", when, seconds(5));
    expect_one_reason(workers, {0, 2}, "the bound is .limit of that call, otherwise .timeouts.work", when, seconds(5));
    expect_members(workers, {0, 2}, PeerError::Noticed::kAbsent, 1, 42, kAtWork);
    const std::string told = workers.expect(1, "log: the run has ended while worker 1 is ").text;
    EXPECT_NE(told.find(kAtWork), std::string::npos) << told;
    EXPECT_NE(told.find("worker 1 has not come to call"), std::string::npos) << told;
    workers.tell(1, "come");
    EXPECT_EQ(workers.expect(1, "failed after ").text, workers.expect(0, "failed after ").text);
    for (const Report& one : workers.reports(1)) EXPECT_NE(one.text, "may go on");
  }
}

TEST_P(WorkerFaults, NameAWorkerThatIsKilledWhileItIsAtWork) {
  const auto started = start("waits_for_work_of_worker_1");
  WorkerProcesses& workers = *started;
  workers.expect(1, "works");
  const Time when = workers.signal(1, SIGKILL);
  expect_one_reason(workers, {0, 2}, "worker 1 (process", when, seconds(1));
}

TEST_P(WorkerFaults, AreToldAtOnceToAWorkerThatIsAtWork) {
  const auto started = start("waits_for_work_of_worker_1");
  WorkerProcesses& workers = *started;
  workers.expect(1, "works");
  const Time when = workers.signal(2, SIGKILL);
  const Report told = workers.expect(1, "log: the run has ended while worker 1 is ");
  EXPECT_LT(told.when - when, seconds(2));
  EXPECT_NE(told.text.find("worker 2 (process"), std::string::npos) << told.text;
  workers.tell(1, "come");
  expect_one_reason(workers, {0, 1}, "worker 2 (process", when, seconds(30));
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
    // Of the mixed job's three workers only worker 2 is on another host, and cannot see why: either it noticed first,
    // or the reason is told.
    const std::string text = workers.expect(2, "failed after ").text;
    const bool from_elsewhere = GetParam() == "mixed" && text.find("worker 2 has heard nothing") != std::string::npos;
    expect_one_reason(workers, all_but(frozen),
                      from_elsewhere ? "worker 2 has heard nothing from it" : "; a signal has stopped it", when,
                      milliseconds(2 * kLostMs));
    expect_members(workers, all_but(frozen), PeerError::Noticed::kSilent, frozen, -1, "before its first step");
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
  using enum PeerError::Noticed;
  const std::map<std::string, std::pair<std::string, PeerError::Noticed>> words{
      {"exit", {"ended its program", kExited}},
      {"leave", {"left the run", kLeft}},
      {"abort", {"aborted the run: its data ended", kAborted}},
      {"throw", {"was ended by an exception", kException}},
      {"crash", {"is gone", kGone}}};
  for (const auto& [how, expected] : words) {
    const auto started = start("ends_as_told", {.how = how});
    WorkerProcesses& workers = *started;
    const Report middle = workers.expect(1, "in the middle");
    expect_one_reason(workers, {0, 2}, expected.first, middle.when, seconds(5));
    expect_members(workers, {0, 2}, expected.second, 1, -1, "before its first step");
    EXPECT_TRUE(workers.expect(0, "failed after ").text.find("worker 1 ") != std::string::npos);
  }
}

TEST_P(WorkerFaults, AreNotCausedByARecordThatIsTooLong) {
  const auto started = start("agrees_on_too_much");
  started->expect_all("refused: LS-COUNT");
  started->expect_all("then got less");
  for (int64_t w = 0; w < kWorkers; ++w) EXPECT_EQ(started->wait(w).code, 0) << started->output(w);
}

TEST_P(WorkerFaults, DoNotNameAWorkerWhoseConnectionBreaks) {
  if (GetParam() == "shared-memory" || is_plug_in(GetParam())) GTEST_SKIP() << "it moves bytes by no such connection";
  std::set<std::string> kinds;
  for (const int64_t count : {2, 3}) {
    for (const char* which : {"0", "1"}) {
      for (int seed = 0; seed < 2; ++seed) {
        const auto started = start("resets_a_connection", {.workers = count, .how = which});
        WorkerProcesses& workers = *started;
        workers.expect_all("in the middle");
        const int64_t resets = count - 1;
        workers.tell(resets, "reset it");
        const Time when = workers.expect(resets, "resets it").when;
        expect_one_reason(workers, all_but(-1, count), "both are alive", when, seconds(2));
        const std::string text = workers.expect(0, "failed after ").text;
        EXPECT_NE(
            text.find(fmt::format("worker {} (process ", text.find("between worker 0") < text.size() ? resets : 0)),
            std::string::npos)
            << text;
        kinds.insert(text.find("connection for data") < text.size() ? "data" : "control");
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_EQ(kinds.size(), 2U) << "both kinds of connections were reset";
}

TEST_P(WorkerFaults, AreNotSeenWhereEightWorkersShareFewCores) {
  constexpr int64_t kMany = 8;
  const auto started = start("calls_under_load", {.lost_ms = 5000, .workers = kMany});
  WorkerProcesses& workers = *started;
  workers.expect_all("done", seconds(120));
  for (int64_t w = 0; w < kMany; ++w) EXPECT_EQ(workers.wait(w).code, 0);
}

INSTANTIATE_TEST_SUITE_P(Engines, WorkerFaults,
                         ::testing::Values("shared-memory", "tls", "tcp", "ucx", "mixed", "rounds"),
                         [](const auto& one) { return one.param == "shared-memory" ? "SharedMemory" : one.param; });

}  // namespace
}  // namespace lockstep::internal
