// Records that are damaged, contradict themselves, or cannot be written: each ends in an error with a name.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/server/record/run_record.h"
#include "lockstep/server/record/run_replay.h"
#include "tests/server/replayed_run.h"
#include "tests/support/errors.h"
#include "tests/support/full_disk.h"

namespace lockstep {
namespace {

using internal::read_record;
using internal::RecordEvent;
using internal::RecordFile;
using internal::RunEvents;
using internal::StepOutcome;
using testing::EnvironmentScope;
using testing::expect_error;
using testing::FullDisk;
using testing::losses_of;
using testing::RecordedProgram;
using Events = std::vector<RecordEvent>;

class ReplayedDamage : public testing::ReplayTest {
 protected:
  RunEvents recorded(int64_t workers, int steps) const {
    RecordedProgram program({.record = file(), .workers = workers, .seed = 7});
    losses_of(program, steps);
    return read_record(file()).runs.front();
  }
  std::string written(const std::string& program, const Events& events) const {
    RecordFile changed(path("changed.rec"));
    changed.begin_run(program);
    for (const RecordEvent& one : events) changed.add(one);
    changed.end_run();
    return path("changed.rec");
  }
};

/// What the replay of a record by its own program has come to.
std::string end_of_replay(const std::string& file, int64_t workers, int steps) {
  const EnvironmentScope replay("LOCKSTEP_REPLAY", file.c_str());
  try {
    RecordedProgram program({.workers = workers, .seed = 7});
    losses_of(program, steps);
  } catch (const Error& error) {
    return std::string(error.code());
  }
  return "ended";
}

TEST_F(ReplayedDamage, ARecordThatContradictsItselfIsNamedAndNeverWaitedFor) {
  constexpr int kSteps = 12;
  const RunEvents run = recorded(2, kSteps);
  ASSERT_EQ(run.events.size(), static_cast<std::size_t>(kSteps));
  using Change = std::function<void(Events&, std::size_t)>;
  const std::vector<std::pair<const char*, Change>> changes{
      {"lost", [](Events& all, std::size_t i) { all.erase(all.begin() + static_cast<std::ptrdiff_t>(i)); }},
      {"twice", [](Events& all, std::size_t i) { all.push_back(all[i]); }},
      {"moved to the end",
       [](Events& all, std::size_t i) {
         std::rotate(all.begin() + static_cast<std::ptrdiff_t>(i), all.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                     all.end());
       }},
      {"of the other worker", [](Events& all, std::size_t i) { all[i].worker = 1 - all[i].worker; }},
      {"of a worker that is not there", [](Events& all, std::size_t i) { all[i].worker = 2; }},
      {"of another step", [](Events& all, std::size_t i) { all[i].step += 1; }},
      {"of a step that never comes", [](Events& all, std::size_t i) { all[i].step = int64_t{1} << 40; }},
      {"of a step below 0", [](Events& all, std::size_t i) { all[i].step = -1; }},
      {"of another function", [](Events& all, std::size_t i) { all[i].function = 7; }},
      {"saw the beginning", [](Events& all, std::size_t i) { all[i].states.assign(all[i].states.size(), 0); }},
      {"saw the future", [](Events& all, std::size_t i) { all[i].states.assign(all[i].states.size(), 11); }},
      {"saw what never is", [](Events& all, std::size_t i) { all[i].states.back() = uint64_t{1} << 50; }},
      {"saw nothing", [](Events& all, std::size_t i) { all[i].states.clear(); }},
      {"saw more", [](Events& all, std::size_t i) { all[i].states.push_back(0); }},
      {"failed", [](Events& all, std::size_t i) { all[i].outcome = StepOutcome::kFailed; }},
      {"had no data", [](Events& all, std::size_t i) { all[i].outcome = StepOutcome::kStreamEnded; }},
      {"was too late", [](Events& all, std::size_t i) { all[i].outcome = StepOutcome::kTooLate; }},
      {"failed later",
       [](Events& all, std::size_t i) {
         all[i].outcome = StepOutcome::kFailed;
         all[i].scheduled = 99;
       }},
      {"pushed nothing", [](Events& all, std::size_t i) { all[i].pushed = false; }},
      {"late", [](Events& all, std::size_t i) { all[i].is_late = true; }},
      {"cancelled",
       [](Events& all, std::size_t i) { all[i] = {.kind = RecordEvent::Kind::kCancelled, .scheduled = 5}; }},
      {"given up",
       [](Events& all, std::size_t i) {
         all[i] = {.kind = RecordEvent::Kind::kGivenUp, .scheduled = 5, .step = all[i].step};
       }},
      {"changed",
       [](Events& all, std::size_t i) { all[i] = {.kind = RecordEvent::Kind::kChanged, .scheduled = 5, .state = 3}; }},
      {"a round",
       [](Events& all, std::size_t i) { all[i] = {.kind = RecordEvent::Kind::kRoundCompleted, .scheduled = 5}; }}};
  for (const auto& [name, change] : changes) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{5}, std::size_t{kSteps - 1}}) {
      Events events = run.events;
      change(events, at);
      const std::string end = end_of_replay(written(run.program, events), 2, kSteps);
      const bool has_changed = events != run.events;
      // Some of these are what another order of threads would have written, and can be repeated: LS-PEER is the error
      // of a step that was given up.
      EXPECT_TRUE(end == "LS-REPLAY-DEPARTS" || end == "LS-RUN-RECORD" || end == "LS-PEER" || end == "ended")
          << name << ", " << at << ": " << end;
      EXPECT_TRUE(has_changed || end == "ended") << name << ", " << at << ": " << end;
    }
  }
}

TEST_F(ReplayedDamage, AForeignProgramIsNamed) {
  const RunEvents run = recorded(2, 3);
  for (const char* program : {"", "[]", "not JSON", "{\"steps\": {\"a\": 1}}", "{\"steps\": 3, \"seed\": []}"}) {
    const EnvironmentScope replay("LOCKSTEP_REPLAY", written(program, run.events).c_str());
    RecordedProgram same({.workers = 2, .seed = 7});
    try {
      losses_of(same, 3);
      ADD_FAILURE() << program;
    } catch (const DataError& error) {
      EXPECT_EQ(error.code(), "LS-RUN-RECORD") << program;
    } catch (const UsageError& error) {
      EXPECT_EQ(error.code(), "LS-REPLAY-DIFFERS") << program;
    }
  }
}

TEST_F(ReplayedDamage, ARecordThatCannotBeWrittenToItsEndFailsTheRun) {
  RecordedProgram program({.record = file(), .workers = 2, .seed = 7});
  const auto train = program.strategy.step("train", program.train);
  std::optional<FullDisk> full;
  const auto run = [&] {
    program.strategy.coordinate([&](Coordinator& coordinator) {
      for (int k = 0; k < 5; ++k) coordinator.schedule(train);
      coordinator.join();
      full.emplace(1);
    });
  };
  for (int time = 0; time < 2; ++time) {  // the second one finds it so when it begins
    expect_error<DataError>(run, "LS-FILE", {quoted("run.rec")});
    full.reset();
  }
  EXPECT_FALSE(read_record(file()).runs.front().is_whole);
}

TEST_F(ReplayedDamage, TwoStrategiesDoNotWriteOneRecord) {
  RecordedProgram first({.record = file(), .workers = 2, .seed = 7});
  RecordedProgram second({.record = file(), .workers = 2, .seed = 7});
  losses_of(first, 3);
  expect_error<DataError>([&] { losses_of(second, 3); }, "LS-FILE", {quoted("run.rec"), "another run"});
  EXPECT_EQ(read_record(file()).runs.front().events.size(), 3U);
}

/// A read that the program does not repeat holds back the log, until it is passed over.
TEST(StuckReplay, GoesOnWithoutAReadThatDoesNotCome) {
  using namespace internal;
  const RunEvents run{.events = {{.step = 0, .pushed = true, .states = {0}},
                                 {.kind = RecordEvent::Kind::kRead, .scheduled = 2, .state = 0},
                                 {.step = 1, .pushed = true, .states = {1}}}};
  std::vector<WorkerMessage> to_worker;
  std::vector<ServerMessage> to_server;
  RunReplay replay(run, {"train"}, 1, 0,
                   {.to_worker = [&](const ToWorker& one) { to_worker.push_back(one.message); },
                    .to_server = [&](const ToServer& one) { to_server.push_back(one.message); }},
                   [](const Payload&) { return std::string(); });
  for (int64_t step = 0; step < 2; ++step) {
    replay.schedules(step, 0);
    replay.carry(ToWorker{.message = GiveStep{.step = {.step = step}}});
  }
  EXPECT_EQ(to_worker.size(), 2U);
  const auto pull = [&](int64_t step) { replay.carry(ToServer{.message = PullRequest{.step = {.step = step}}}); };
  pull(0);
  replay.answered({.step = {.step = 0}});
  replay.reported({.step = {.step = 0}, .pushed = true, .pulled = {{}}});
  ChiefMachine machine({.workers = 1});
  ChiefOutput out;
  ASSERT_TRUE(replay.take_next(machine, out));
  replay.carry(ToServer{.message = LogEntries{.entries = {{.kind = LogEntry::Kind::kCommit}}}});
  EXPECT_FALSE(replay.is_stuck()) << "the function of step 1 runs";
  pull(1);
  EXPECT_TRUE(replay.is_stuck());
  EXPECT_EQ(replay.waits_for_program(), "") << "another thread may read";
  EXPECT_FALSE(replay.has_sent(1));
  EXPECT_TRUE(replay.passes_over_read());
  EXPECT_TRUE(replay.has_sent(1));
  EXPECT_FALSE(replay.is_stuck());
}

}  // namespace
}  // namespace lockstep
