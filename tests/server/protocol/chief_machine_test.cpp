// The chief's rules: which steps are given, what closes them, which numbers they have, and what the log has of them.
#include "lockstep/server/protocol/chief_machine.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/server/protocol/chief_bench.h"

namespace lockstep::internal::inline server {
namespace {

using Steps = std::vector<int64_t>;
using Attempts = std::vector<StepAttempt>;

Payload thing() { return std::make_shared<int>(); }

TEST(ChiefMachineTest, GivesEachWorkerAsManyStepsAsItsWindowHas) {
  ChiefBench bench({.workers = 2, .window = 2});
  bench.schedule(5);
  EXPECT_EQ(bench.given(0), (Attempts{{.step = 0}, {.step = 2}}));
  EXPECT_EQ(bench.given(1), (Attempts{{.step = 1}, {.step = 3}}));
  bench.report(1);
  EXPECT_EQ(bench.given(1), (Attempts{{.step = 3}, {.step = 4}}));
  EXPECT_EQ(bench.log_text(), "commit 1.0");
  EXPECT_EQ(bench.counted, Steps{1});
}

TEST(ChiefMachineTest, FillsAWindowThatBecomesLarger) {
  ChiefBench bench({.workers = 1, .window = 1});
  bench.schedule(4);
  EXPECT_EQ(bench.given(0).size(), 1u);
  bench.chief().set_window(3);
  bench.collect();
  EXPECT_EQ(bench.given(0).size(), 3u);
}

TEST(ChiefMachineTest, DealsOutStepsWhereThereAreNoServers) {
  ChiefBench bench({.workers = 2, .servers = 0, .window = 1});
  bench.schedule(3);
  bench.report(1, StepOutcome::kDone, false);
  bench.lose(0);
  bench.report(1, StepOutcome::kDone, false);
  bench.report(1, StepOutcome::kDone, false);
  EXPECT_EQ(bench.counted, (Steps{1, 2, 0}));
}

TEST(ChiefMachineTest, GivesALostStepFirstToAnotherWorker) {
  ChiefBench bench({.workers = 2, .window = 1});
  bench.schedule(3);
  bench.lose(0);
  bench.report(1);
  EXPECT_EQ(bench.given(1), (Attempts{{.step = 0, .attempt = 1}}));
}

TEST(ChiefMachineTest, GivesUpAWorkerWhoseSuccessorJoins) {
  ChiefBench bench({.workers = 2, .window = 1});
  bench.schedule(2);
  bench.join(0);
  EXPECT_EQ(bench.given(0), (Attempts{{.step = 0, .attempt = 1}}));
  EXPECT_EQ(bench.id(0).incarnation, 2u);
  bench.report(0);
  EXPECT_EQ(bench.counted, Steps{0});
}

TEST(ChiefMachineTest, ForgetsACancelledStepThatWasToBeGivenAgain) {
  ChiefBench bench({.workers = 1, .window = 1, .most_argument_bytes = 100});
  bench.chief().schedule({.argument_bytes = 80});
  bench.schedule(1);
  EXPECT_TRUE(bench.chief().has_room(100));
  bench.lose(0);
  EXPECT_FALSE(bench.chief().has_room(21)) << "it waits again";
  EXPECT_EQ(bench.chief().num_queued(), 2);
  bench.chief().cancel(bench.out());
  bench.collect();
  EXPECT_EQ(bench.chief().num_queued(), 0);
  EXPECT_TRUE(bench.chief().has_room(1000));
  bench.join(0);
  EXPECT_TRUE(bench.given(0).empty());
  EXPECT_EQ(bench.schedule(1), Steps{2});
  EXPECT_EQ(bench.given(0), (Attempts{{.step = 2}}));
}

TEST(ChiefMachineTest, ClosesAStepThatWasLostMoreThanAttemptsAllow) {
  ChiefBench bench({.workers = 1, .attempts = 3, .window = 1});
  bench.schedule(2);
  for (uint32_t attempt = 0; attempt < 4; ++attempt) {
    EXPECT_EQ(bench.given(0), (Attempts{{.step = 0, .attempt = attempt}}));
    EXPECT_TRUE(bench.closed.empty());
    bench.lose(0);
    bench.join(0);
  }
  ASSERT_EQ(bench.closed_steps(ClosedBecause::kLostTooOften), Steps{0});
  EXPECT_EQ(bench.closed.front().workers, (std::vector<int32_t>{0, 0, 0, 0}));
  EXPECT_EQ(bench.closed_steps(ClosedBecause::kCancelled), Steps{1}) << "as after each first error";
  EXPECT_EQ(bench.log_text(), "close 0") << "servers may hold its pushes; nobody was given step 1";
}

TEST(ChiefMachineTest, TakesNoReportOfAWorkerThatWasGivenUp) {
  ChiefBench bench({.workers = 2, .window = 1});
  bench.schedule(2);
  const StepReport late = bench.report_of(0);
  bench.lose(0);
  bench.receive(late);
  EXPECT_TRUE(bench.counted.empty());
  ASSERT_EQ(bench.to_workers.size(), 1u);
  EXPECT_EQ(bench.to_workers[0],
            (ToWorker{.worker = bench.id(0), .message = WorkerReplaced{.epoch = 1, .to = bench.id(0)}}));
}

TEST(ChiefMachineTest, TakesEachReportOnceAndInOrder) {
  ChiefBench bench({.workers = 1, .window = 2});
  bench.schedule(2);
  const StepReport first = bench.report_of(0);
  const StepReport second = bench.report_of(0);
  bench.receive(second);
  EXPECT_TRUE(bench.counted.empty()) << "it will come again after the first";
  bench.receive(first);
  bench.receive(first);
  bench.receive(second);
  EXPECT_EQ(bench.counted, (Steps{0, 1}));
  ASSERT_EQ(bench.to_workers.size(), 1u) << "the repeated one is acknowledged";
  EXPECT_EQ(std::get<ReportsNoted>(bench.to_workers[0].message).reports, 1u);
}

TEST(ChiefMachineTest, ClosesAllThatDoesNotCountAtTheFirstError) {
  ChiefBench bench({.workers = 3, .window = 1});
  bench.schedule(5);
  bench.report(0);
  bench.report(1, StepOutcome::kFailed);
  EXPECT_EQ(bench.counted, Steps{0});
  EXPECT_EQ(bench.closed_steps(ClosedBecause::kFailed), Steps{1});
  EXPECT_EQ(bench.closed_steps(ClosedBecause::kCancelled), (Steps{2, 3, 4}));
  EXPECT_EQ(bench.log_text(), "commit 0.0, close 1, close 2, close 3") << "step 4 was given to nobody";
  // A second error of a step that is closed is none.
  bench.report(2, StepOutcome::kFailed);
  EXPECT_EQ(bench.closed.size(), 4u);
  EXPECT_EQ(bench.chief().steps(), 1);
  EXPECT_EQ(bench.chief().settled(), 5);
}

TEST(ChiefMachineTest, GivesAWorkerItsNextStepOnlyWhenACancelledOneHasEnded) {
  ChiefBench bench({.workers = 1, .window = 2});
  bench.schedule(2);
  bench.chief().cancel(bench.out());
  bench.collect();
  EXPECT_EQ(bench.to_workers.size(), 2u) << "both are withdrawn, but the worker may have begun";
  EXPECT_EQ(bench.schedule(1), Steps{2}) << "numbers are not used twice";
  EXPECT_EQ(bench.given(0), (Attempts{{.step = 0}, {.step = 1}}));
  bench.report(0);
  bench.report(0, StepOutcome::kWithdrawn, false);
  EXPECT_TRUE(bench.counted.empty()) << "what was cancelled does not count";
  EXPECT_EQ(bench.given(0), (Attempts{{.step = 2}}));
  bench.report(0);
  EXPECT_EQ(bench.counted, Steps{2});
}

TEST(ChiefMachineTest, GivesNothingBehindACancelledStepThatRuns) {
  ChiefBench bench({.workers = 1, .window = 3});
  bench.schedule(1);
  bench.chief().cancel(bench.out());
  bench.collect();
  bench.schedule(1);
  EXPECT_EQ(bench.given(0), (Attempts{{.step = 0}}));
  bench.report(0);
  EXPECT_EQ(bench.given(0), (Attempts{{.step = 1}}));
}

TEST(ChiefMachineTest, GivesAnOverdueStepToAnotherWorker) {
  ChiefBench bench({.workers = 2, .window = 2});
  bench.schedule(3);
  bench.chief().step_overdue({.step = 0, .attempt = 0}, bench.out());
  bench.collect();
  EXPECT_EQ(bench.given(1), (Attempts{{.step = 1}, {.step = 0, .attempt = 1}})) << "and not step 2, which waits behind";
  bench.report(1);
  EXPECT_EQ(bench.given(1).back(), (StepAttempt{.step = 2, .attempt = 1})) << "what waited behind it goes too";
  bench.schedule(1);
  EXPECT_EQ(bench.given(0).size(), 2u) << "the slow worker gets nothing";
  bench.report(0);
  EXPECT_EQ(bench.counted, Steps{1}) << "its push is refused";
  bench.report(0, StepOutcome::kWithdrawn, false);
  EXPECT_EQ(bench.given(0), (Attempts{{.step = 3}}));
  // An attempt that is not under way is not overdue.
  bench.chief().step_overdue({.step = 0, .attempt = 0}, bench.out());
  bench.collect();
  EXPECT_EQ(bench.given(1), (Attempts{{.step = 0, .attempt = 1}, {.step = 2, .attempt = 1}}));
}

TEST(ChiefMachineTest, TakesTheNumbersFirstThatACutLeftOut) {
  ChiefCut cut{.position = 500, .counted = 98, .floor = 97, .counted_above = {99}};
  ChiefBench bench({}, cut);
  EXPECT_EQ(bench.chief().steps(), 98);
  EXPECT_EQ(bench.chief().position(), 500u);
  EXPECT_EQ(bench.schedule(4), (Steps{97, 98, 100, 101}));
}

TEST(ChiefMachineTest, DoesNotTakeNumbersOfClosedStepsAgain) {
  ChiefCut cut{.counted = 5, .floor = 5, .counted_above = {}, .closed_above = {6}};
  ChiefBench bench({}, cut);
  EXPECT_EQ(bench.schedule(3), (Steps{5, 7, 8}));
}

TEST(ChiefMachineTest, CutsAtOnePlaceOfTheLogWithTheCountersOfThatPlace) {
  ChiefBench bench({.workers = 4, .servers = 2, .window = 1});
  bench.schedule(4);
  bench.report(0);
  bench.report(3);
  ASSERT_TRUE(bench.chief().begin_cut(7));
  EXPECT_FALSE(bench.chief().begin_cut(8)) << "two at a time";
  bench.report(1);
  bench.receive(CutSaved{.epoch = 1, .server = 0, .cut = 7});
  bench.receive(CutSaved{.epoch = 1, .server = 0, .cut = 7});
  bench.receive(CutSaved{.epoch = 1, .server = 1, .cut = 6});
  EXPECT_TRUE(bench.whole.empty());
  bench.receive(CutSaved{.epoch = 1, .server = 1, .cut = 7});
  ASSERT_EQ(bench.whole.size(), 1u);
  EXPECT_EQ(bench.whole[0].chief,
            (ChiefCut{.position = 3, .counted = 2, .floor = 1, .counted_above = {3}, .closed_above = {}}));
  EXPECT_EQ(bench.log_text(), "commit 0.0, commit 3.0, cut 7, commit 1.0");
  ChiefBench restored({.workers = 1}, bench.whole[0].chief);
  EXPECT_EQ(restored.schedule(3), (Steps{1, 2, 4}));
  EXPECT_TRUE(bench.chief().begin_cut(8));
}

TEST(ChiefMachineTest, CountsAStepWithoutAPushWithoutAnEntry) {
  ChiefBench bench({.workers = 1});
  bench.schedule(1);
  bench.report(0, StepOutcome::kDone, false);
  EXPECT_EQ(bench.counted, Steps{0});
  EXPECT_EQ(bench.log_text(), "");
  // A lost attempt may have pushed all the same.
  bench.schedule(1);
  bench.lose(0);
  bench.join(0);
  bench.report(0, StepOutcome::kDone, false);
  EXPECT_EQ(bench.counted, (Steps{0, 1}));
  EXPECT_EQ(bench.log_text(), "close 1");
}

TEST(ChiefMachineTest, GivesAStepWhenTheResultsThatItTakesAreThere) {
  ChiefBench bench({.workers = 2, .window = 1});
  bench.schedule(1);
  bench.chief().schedule({.after = {0}});
  bench.schedule(1);
  EXPECT_EQ(bench.given(1), (Attempts{{.step = 2}})) << "others go first";
  bench.report(1);
  EXPECT_TRUE(bench.given(1).empty());
  bench.report(0);
  ASSERT_EQ(bench.given(0), (Attempts{{.step = 1}}));
  EXPECT_EQ(bench.last_give(0).position, 2u) << "it sees what step 0 pushed";
}

TEST(ChiefMachineTest, GivesAStepThatSeesWhatItsArgumentsStepsPushed) {
  ChiefBench bench({.workers = 2, .window = 1});
  bench.schedule(1);
  bench.chief().schedule({.after = {0}});
  bench.report(0);
  ASSERT_EQ(bench.given(1), (Attempts{{.step = 1}})) << "the worker that has done least";
  EXPECT_EQ(bench.last_give(1).position, 1u);
}

TEST(ChiefMachineTest, DoesNotWaitForAResultThatIsThere) {
  ChiefBench bench({.workers = 2, .window = 1});
  bench.schedule(2);
  bench.report(1);
  bench.chief().schedule({.after = {1}});
  bench.collect();
  EXPECT_EQ(bench.given(1), (Attempts{{.step = 2}}));
}

TEST(ChiefMachineTest, ClosesAStepWhoseArgumentNeverComes) {
  ChiefBench bench({.workers = 1});
  bench.schedule(1);
  bench.chief().schedule({.after = {0}});
  bench.chief().schedule({.after = {1}});
  bench.schedule(1, 1);
  bench.report(0, StepOutcome::kStreamEnded, false);
  EXPECT_EQ(bench.closed_steps(ClosedBecause::kStreamEnded), Steps{0});
  EXPECT_EQ(bench.closed_steps(ClosedBecause::kCancelled), (Steps{1, 2}));
  bench.report(0);
  EXPECT_EQ(bench.counted, Steps{3});
}

TEST(ChiefMachineTest, GivesAWorkerWhoseStreamHasEndedNoMoreSuchSteps) {
  ChiefBench bench({.workers = 2, .window = 1});
  bench.schedule(4, 5);
  bench.report(0, StepOutcome::kStreamEnded, false);
  EXPECT_TRUE(bench.given(0).empty());
  EXPECT_TRUE(bench.streams_ended.empty());
  bench.report(1);
  EXPECT_EQ(bench.given(1), (Attempts{{.step = 2}}));
  bench.report(1, StepOutcome::kStreamEnded, false);
  EXPECT_EQ(bench.streams_ended, std::vector<uint32_t>{5});
  EXPECT_EQ(bench.closed_steps(ClosedBecause::kStreamEnded), (Steps{0, 2, 3}));
  // Steps of another kind go on. A worker that joins in its place has no more data either.
  bench.schedule(1, 6);
  EXPECT_EQ(bench.given(0), (Attempts{{.step = 4}}));
  bench.report(0);
  bench.join(0);
  bench.schedule(1, 5);
  EXPECT_TRUE(bench.given(0).empty());
  EXPECT_EQ(bench.closed.back().step, 5);
}

TEST(ChiefMachineTest, KeepsStepsBackBehindAChangeInOrder) {
  ChiefBench bench({.workers = 2, .window = 1});
  bench.schedule(1);
  bench.chief().change(thing(), true);
  bench.schedule(1);
  EXPECT_TRUE(bench.given(1).empty());
  bench.chief().change(thing(), false);
  bench.report(0);
  EXPECT_EQ(bench.log_text(), "change, commit 0.0, change") << "the one that is not in order is there at once";
  ASSERT_EQ(bench.given(0).size() + bench.given(1).size(), 1u);
  EXPECT_EQ(bench.last_give(bench.given(0).empty() ? 1 : 0).position, 3u) << "it sees the change";
}

TEST(ChiefMachineTest, AppliesEachStepWithTheRatesOfItsScheduling) {
  ChiefBench bench({.workers = 1, .window = 4});
  const Payload before = thing(), after = thing();
  bench.chief().set_rates(before);
  bench.schedule(1);
  bench.chief().set_rates(after);
  bench.schedule(1);
  bench.report(0);
  bench.report(0);
  ASSERT_EQ(bench.log.size(), 2u);
  EXPECT_EQ(bench.log[0].payload, before);
  EXPECT_EQ(bench.log[1].payload, after);
}

TEST(ChiefMachineTest, HasNoRoomForMoreStepsOrArgumentsThanAreAllowed) {
  ChiefBench bench({.workers = 1, .window = 1, .most_queued = 3, .most_argument_bytes = 100});
  EXPECT_TRUE(bench.chief().has_room(1000)) << "of nothing queued, one may be larger";
  bench.schedule(1);
  bench.chief().schedule({.argument_bytes = 60});
  EXPECT_FALSE(bench.chief().has_room(41));
  EXPECT_TRUE(bench.chief().has_room(40));
  bench.schedule(2);
  EXPECT_FALSE(bench.chief().has_room(0));
  bench.report(0);
  EXPECT_TRUE(bench.chief().has_room(100)) << "what is given does not wait";
}

TEST(ChiefMachineTest, GivesNothingWhileAServerIsTooFarBehind) {
  ChiefBench bench({.workers = 1, .servers = 2, .window = 1, .most_behind = 1});
  bench.schedule(3);
  bench.report(0);
  bench.report(0);
  EXPECT_TRUE(bench.given(0).empty());
  bench.receive(ServerRead{.epoch = 1, .server = 0, .position = 2});
  EXPECT_TRUE(bench.given(0).empty()) << "the other one";
  bench.receive(ServerRead{.epoch = 1, .server = 1, .position = 1});
  EXPECT_EQ(bench.given(0), (Attempts{{.step = 2}}));
}

TEST(ChiefMachineTest, KeepsTheEntriesThatAServerMayNeed) {
  ChiefBench bench({.workers = 1, .servers = 2, .window = 1});
  bench.schedule(3);
  for (int k = 0; k < 3; ++k) bench.report(0);
  bench.receive(ServerRead{.epoch = 1, .server = 0, .position = 3});
  EXPECT_EQ(bench.chief().log().kept().size(), 3u);
  bench.receive(ServerRead{.epoch = 1, .server = 1, .position = 2});
  bench.receive(ServerRead{.epoch = 1, .server = 1, .position = 1});
  EXPECT_EQ(bench.chief().log().kept().size(), 1u);
  bench.receive(ServerRead{.epoch = 1, .server = 1, .position = 99});
  EXPECT_EQ(bench.chief().log().kept().size(), 1u) << "more than there is cannot be read";
  bench.chief().repeat_to_server(1);
  bench.chief().collect(bench.out());
  ASSERT_EQ(bench.out().to_servers.size(), 1u);
  const auto& entries = std::get<LogEntries>(bench.out().to_servers[0].message);
  EXPECT_EQ(entries.first, 2u);
  EXPECT_EQ(entries.entries.size(), 1u);
  EXPECT_EQ(entries.floor, 3);
}

TEST(ChiefMachineTest, DoesNotSendAgainWhatAServerHasReadMeanwhile) {
  ChiefBench bench({.workers = 1, .window = 1});
  bench.schedule(2);
  for (int k = 0; k < 2; ++k) bench.report(0);
  bench.chief().repeat_to_server(0);
  bench.log.clear();
  bench.receive(ServerRead{.epoch = 1, .server = 0, .position = 1});
  EXPECT_EQ(bench.log_text(), "commit 1.0");
}

TEST(ChiefMachineTest, SendsEntriesTogetherToAServerThatHasNotReadOthers) {
  ChiefBench bench({.workers = 1, .window = 1, .eager = 2});
  bench.schedule(5);
  for (int k = 0; k < 4; ++k) bench.report(0);
  EXPECT_EQ(bench.log_text(), "commit 0.0, commit 1.0");
  bench.receive(ServerRead{.epoch = 1, .server = 0, .position = 1});
  EXPECT_EQ(bench.log_text(), "commit 0.0, commit 1.0, commit 2.0, commit 3.0");
  bench.report(0);
  EXPECT_EQ(bench.log.size(), 4u);
  bench.receive(ServerRead{.epoch = 1, .server = 0, .position = 4});
  EXPECT_EQ(bench.log.size(), 5u);
}

TEST(ChiefMachineTest, SendsAWorkerAgainWhatItHasNotReported) {
  ChiefBench bench({.workers = 1, .window = 2});
  bench.schedule(2);
  bench.report(0);
  bench.chief().repeat_to_worker(bench.id(0), bench.out());
  ASSERT_EQ(bench.out().to_workers.size(), 2u);
  EXPECT_EQ(std::get<ReportsNoted>(bench.out().to_workers[0].message).reports, 1u);
  EXPECT_EQ(std::get<GiveStep>(bench.out().to_workers[1].message), bench.last_give(0));
  bench.collect();
  bench.chief().cancel(bench.out());
  bench.collect();
  bench.chief().repeat_to_worker(bench.id(0), bench.out());
  ASSERT_EQ(bench.out().to_workers.size(), 3u);
  EXPECT_TRUE(std::holds_alternative<WithdrawStep>(bench.out().to_workers[2].message));
}

TEST(ChiefMachineTest, TellsAWorkerOnceWhichReportsHaveArrived) {
  ChiefBench bench({.workers = 1, .window = 1});
  bench.schedule(2);
  bench.report(0);
  EXPECT_EQ(bench.last_give(0).reports_noted, 1u);
  bench.chief().note_reports(bench.out());
  EXPECT_TRUE(bench.out().to_workers.empty()) << "the step that was given has told it";
  bench.report(0);
  bench.chief().note_reports(bench.out());
  ASSERT_EQ(bench.out().to_workers.size(), 1u);
  EXPECT_EQ(std::get<ReportsNoted>(bench.out().to_workers[0].message).reports, 2u);
  bench.collect();
  bench.chief().note_reports(bench.out());
  EXPECT_TRUE(bench.out().to_workers.empty());
}

TEST(ChiefMachineTest, IgnoresMessagesOfOtherEpochsAndOfNobody) {
  ChiefBench bench({.workers = 1});
  bench.schedule(1);
  StepReport report = bench.report_of(0);
  report.epoch = 2;
  bench.receive(report);
  bench.receive(ServerRead{.epoch = 1, .server = 9, .position = 1});
  bench.receive(RoundSquares{.epoch = 1, .server = -1});
  bench.receive(CutSaved{.epoch = 1, .server = 3});
  report.epoch = 1;
  report.from.worker = 17;
  bench.receive(report);
  EXPECT_TRUE(bench.counted.empty());
}

}  // namespace
}  // namespace lockstep::internal::server
