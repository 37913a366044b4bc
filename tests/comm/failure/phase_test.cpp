// What workers tell each other of what they do, and of why a run has ended.
#include "lockstep/comm/failure/phase.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "lockstep/comm/failure/run_failure.h"
#include "lockstep/comm/failure/seen_phases.h"
#include "lockstep/comm/failure/stopped_process.h"

namespace lockstep::internal {
namespace {

using Kind = WorkerPhase::Kind;
using Noticed = PeerError::Noticed;

WorkerPhase any_phase() {
  WorkerPhase phase{.kind = static_cast<Kind>(*rc::gen::inRange(0, 10)),
                    .step = *rc::gen::inRange<int64_t>(0, int64_t{1} << 40)};
  if (phase.is_work()) {
    phase.limit = std::chrono::milliseconds(*rc::gen::inRange<int64_t>(0, 1 << 15));
  } else {
    phase.meeting = *rc::gen::inRange<int64_t>(0, 1 << 16);
    phase.is_meeting = *rc::gen::arbitrary<bool>();
  }
  return phase;
}

RC_GTEST_PROP(WorkerPhases, ComeBackFromOneWord, ()) {
  const WorkerPhase phase = any_phase();
  RC_ASSERT(decode_phase(encode(phase)) == phase);
}

RC_GTEST_PROP(WorkerPhases, AreReadFromAnyWord, (uint64_t word)) { RC_ASSERT(!describe(decode_phase(word)).empty()); }

TEST(WorkerPhases, BecomeTheLargestWhereANumberDoesNotFit) {
  const WorkerPhase large{.kind = Kind::kStep, .step = INT64_MAX, .meeting = INT64_MAX, .is_meeting = true};
  EXPECT_EQ(
      decode_phase(encode(large)),
      (WorkerPhase{.kind = Kind::kStep, .step = (int64_t{1} << 40) - 1, .meeting = (1 << 16) - 1, .is_meeting = true}));
  EXPECT_EQ(decode_phase(encode(WorkerPhase{.kind = Kind::kStep, .step = -1})), (WorkerPhase{.kind = Kind::kStep}));
}

TEST(WorkerPhases, KeepLongLimitsNearly) {
  using std::chrono::milliseconds;
  for (const milliseconds limit : {milliseconds(32'767), milliseconds(32'769), milliseconds(std::chrono::hours(1)),
                                   milliseconds(std::chrono::hours(365 * 24))}) {
    const milliseconds back =
        decode_phase(encode(WorkerPhase{.kind = Kind::kOnChief, .step = 7, .limit = limit})).limit;
    EXPECT_GE(back, limit);
    EXPECT_LE(back - limit, limit / 10'000) << limit.count();
  }
  EXPECT_EQ(decode_phase(encode(WorkerPhase{.kind = Kind::kInput, .limit = milliseconds(-1)})).limit, milliseconds(0));
  EXPECT_EQ(decode_phase(encode(WorkerPhase{.kind = Kind::kStep, .limit = milliseconds(9)})),
            (WorkerPhase{.kind = Kind::kStep}));
}

TEST(WorkerPhases, OfWorkLastAsLongAsTheLeastOfTheirLimits) {
  using std::chrono::milliseconds;
  constexpr milliseconds kUsual(500);
  SeenPhases seen(4);
  const auto see = [&](int64_t worker, const WorkerPhase& phase) { seen.see(worker, encode(phase)); };
  see(0, {.kind = Kind::kOnChief, .limit = milliseconds(900)});
  see(1, {.kind = Kind::kInput});
  see(2, {.kind = Kind::kFunction, .limit = milliseconds(300)});
  see(3, {.kind = Kind::kStep, .step = 3});
  EXPECT_EQ(seen.limit_of_work({0}, kUsual), milliseconds(900));
  EXPECT_EQ(seen.limit_of_work({0, 1}, kUsual), kUsual);
  EXPECT_EQ(seen.limit_of_work({0, 1, 2}, kUsual), milliseconds(300));
  EXPECT_EQ(seen.limit_of_work({0, 3}, kUsual), std::nullopt);  // one of them is not at work
  EXPECT_EQ(seen.limit_of_work({}, kUsual), std::nullopt);
  for (const Kind kind : {Kind::kSave, Kind::kRestore}) {
    see(3, {.kind = kind});
    EXPECT_EQ(seen.limit_of_work({3}, kUsual), kUsual);
  }
  for (const Kind kind : {Kind::kStarting, Kind::kStep, Kind::kEvaluation, Kind::kCall, Kind::kBetween}) {
    see(3, {.kind = kind});
    EXPECT_EQ(seen.limit_of_work({3}, kUsual), std::nullopt);
  }
}

TEST(WorkerPhases, OfAKindThatIsNotKnownAreTheFirst) { EXPECT_EQ(decode_phase(15), WorkerPhase{}); }

TEST(WorkerPhases, HaveATextEach) {
  std::set<std::string> texts;
  for (const Kind kind : {Kind::kStarting, Kind::kStep, Kind::kEvaluation, Kind::kCall, Kind::kBetween, Kind::kInput,
                          Kind::kSave, Kind::kRestore, Kind::kOnChief, Kind::kFunction}) {
    texts.insert(describe({.kind = kind, .step = 12}));
  }
  EXPECT_EQ(texts.size(), 10U);
  EXPECT_EQ(describe({.kind = Kind::kStep, .step = 12}), "in step 12");
  EXPECT_EQ(describe({.kind = Kind::kStep, .step = 12, .meeting = 3, .is_meeting = true}),
            "in step 12, at its meeting 3");
  EXPECT_EQ(describe({.kind = Kind::kStep, .step = 12, .meeting = 3}), "in step 12, after its meeting 3");
  EXPECT_EQ(describe({.kind = Kind::kStep, .step = 12, .is_meeting = true}), "in step 12, at its end");
}

TEST(WorkerPhases, AgeByTheClockOfWhoSeesThem) {
  using std::chrono::seconds;
  const SeenPhases::Clock::time_point begin{seconds(1000)};
  const uint64_t step = encode(WorkerPhase{.kind = Kind::kStep, .step = 4});
  SeenPhases seen(2);
  seen.see(1, step, begin);
  EXPECT_EQ(seen.describe(1, begin + std::chrono::milliseconds(999)), "in step 4");
  seen.see(1, step, begin + seconds(20));  // the same again: it does not get younger
  EXPECT_EQ(seen.describe(1, begin + seconds(31)), "in step 4, for 31 s");
  seen.see(1, step + (uint64_t{1} << 24), begin + seconds(31));
  EXPECT_EQ(seen.describe(1, begin + seconds(33)), "in step 5, for 2 s");
  EXPECT_EQ(seen.phase(1), (WorkerPhase{.kind = Kind::kStep, .step = 5}));
  EXPECT_EQ(seen.phase(0), WorkerPhase{});
}

RC_GTEST_PROP(RunFailures, ComeBackFromTheirText, (std::string text)) {
  const RunFailure failure{.text = text,
                           .worker = *rc::gen::inRange<int64_t>(-1, 65536),
                           .process = *rc::gen::inRange<int64_t>(0, 1 << 22),
                           .host = *rc::gen::element<std::string>("", "node1", "a host"),
                           .noticed = static_cast<Noticed>(*rc::gen::inRange(0, 10)),
                           .phase = *rc::gen::arbitrary<bool>() ? std::optional(any_phase()) : std::nullopt};
  RC_ASSERT(decode_failure(encode(failure)) == failure);
}

RC_GTEST_PROP(RunFailures, AreReadFromAnyText, (std::string text)) {
  RC_ASSERT(decode_failure(text).text == text);
  const std::string whole = encode(RunFailure{.text = text, .worker = 3});
  decode_failure(whole.substr(0, *rc::gen::inRange<std::size_t>(0, whole.size())));
  decode_failure("failure " + text);
}

TEST(RunFailures, BecomeErrorsWithWhatIsKnownOfTheWorker) {
  const RunFailure failure{.text = "worker 2 is gone",
                           .worker = 2,
                           .process = 77,
                           .host = "node1",
                           .noticed = Noticed::kGone,
                           .phase = WorkerPhase{.kind = Kind::kStep, .step = 12}};
  const PeerError error = error_of(failure);
  EXPECT_EQ(error.code(), "LS-PEER-LOST");
  EXPECT_EQ(error.failed().worker, 2);
  EXPECT_EQ(error.failed().process, 77);
  EXPECT_EQ(error.failed().host, "node1");
  EXPECT_EQ(error.failed().phase, "in step 12");
  EXPECT_EQ(error.failed().step, 12);
  EXPECT_EQ(error.failed().noticed, Noticed::kGone);
  const PeerError unknown = error_of(RunFailure{.text = "why"});
  EXPECT_EQ(unknown.failed().worker, -1);
  EXPECT_EQ(unknown.failed().step, -1);
  EXPECT_EQ(unknown.failed().phase, "");
}

TEST(StoppedProcess, TellsASignalFromADebugger) {
  EXPECT_EQ(stop_in("Name:\ta\nState:\tS (sleeping)\nTracerPid:\t0\n"), "");
  EXPECT_EQ(stop_in("Name:\ta\nState:\tT (stopped)\nTracerPid:\t0\n"), "a signal has stopped it");
  EXPECT_EQ(stop_in("Name:\ta\nState:\tt (tracing stop)\nTracerPid:\t4711\n"),
            "process 4711 has stopped it, as a debugger does");
  EXPECT_EQ(stop_in(""), "");
  EXPECT_EQ(stop_in("State:"), "");
}

TEST(StoppedProcess, IsReadFromTheSystem) {
  EXPECT_EQ(stop_of(getpid()), "");
  const pid_t child = fork();
  if (child == 0) {
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_EQ(stop_of(child), "a signal has stopped it");
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  EXPECT_EQ(stop_of(child), "");
}

}  // namespace
}  // namespace lockstep::internal
