// Steps that keep an order with each other: bounded staleness, and rounds.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/server/protocol/chief_bench.h"

namespace lockstep::internal::inline server {
namespace {

using Steps = std::vector<int64_t>;
using Attempts = std::vector<StepAttempt>;

ChiefOptions bounded(int64_t staleness, int32_t workers = 2, uint32_t window = 1) {
  return {.workers = workers, .staleness = staleness, .window = window};
}
ChiefOptions rounds(int32_t workers, bool squares = false) {
  return {.workers = workers, .servers = 2, .staleness = 0, .squares = squares, .window = 1};
}

TEST(ChiefStalenessTest, AWorkerMayBeSoManyStepsAheadAndNoMore) {
  ChiefBench bench(bounded(2));
  bench.schedule(10);
  // Worker 1 has step 1 and does not end it: worker 0 gets its steps 0, 1 and 2.
  for (int64_t step : {0, 2, 3}) {
    ASSERT_EQ(bench.given(0), (Attempts{{.step = step}}));
    bench.report(0);
  }
  EXPECT_TRUE(bench.given(0).empty());
  bench.report(1);
  EXPECT_EQ(bench.given(1), (Attempts{{.step = 4}})) << "who has least goes first";
  ASSERT_EQ(bench.given(0), (Attempts{{.step = 5}}));
  EXPECT_EQ(bench.last_give(0).position, 4u) << "its step 3 sees the first step of worker 1, and its own";
}

TEST(ChiefStalenessTest, AStepNeedNotSeeTheLatestOfOthersButAllOfALostWorker) {
  for (const bool is_lost : {false, true}) {
    ChiefBench bench(bounded(1));
    bench.schedule(2);
    bench.report(0);
    bench.report(1);
    if (is_lost) bench.lose(1);
    bench.schedule(1);
    ASSERT_EQ(bench.given(0), (Attempts{{.step = 2}}));
    EXPECT_EQ(bench.last_give(0).position, is_lost ? 2u : 1u) << "its own step is at 0, that of the other one at 1";
  }
}

TEST(ChiefStalenessTest, AStepWithoutAPushCountsForItsWorker) {
  ChiefBench bench(bounded(1));
  bench.schedule(6);
  for (int k = 0; k < 2; ++k) bench.report(0, StepOutcome::kDone, false);
  EXPECT_TRUE(bench.given(0).empty());
  bench.report(1, StepOutcome::kDone, false);
  EXPECT_EQ(bench.given(0).size(), 1u);
}

TEST(WorkerCountTest, KnowsThePositionsOfTheLastStepsAndALaterOneForThoseBefore) {
  WorkerCount count;
  EXPECT_EQ(count.last_position(), 0u);
  for (Position position = 10; position <= 50; position += 10) count.add(position, 2);
  count.add(0, 2);
  EXPECT_EQ(count.count(), 6);
  EXPECT_EQ(count.last_position(), 50u);
  EXPECT_EQ(count.position_of(5), 50u);
  EXPECT_EQ(count.position_of(4), 40u);
  EXPECT_EQ(count.position_of(1), 30u) << "later than needed, as the positions before are forgotten";
  EXPECT_EQ(count.position_of(0), 0u);
  count.raise(9);
  count.raise(3);
  EXPECT_EQ(count.count(), 9);
  EXPECT_EQ(count.position_of(9), 50u);
}

TEST(ChiefStalenessTest, ALostWorkerHoldsNobodyUp) {
  ChiefBench bench(bounded(1));
  bench.schedule(6);
  bench.report(0);
  bench.report(0);
  EXPECT_TRUE(bench.given(0).empty());
  bench.lose(1);
  EXPECT_EQ(bench.given(0), (Attempts{{.step = 1, .attempt = 1}}));
  bench.report(0);
  EXPECT_EQ(bench.given(0).size(), 1u);
}

TEST(ChiefStalenessTest, WhoJoinsBeginsAtTheLowestCountAndSeesAll) {
  ChiefBench bench(bounded(1));
  bench.schedule(20);
  bench.lose(1);
  for (int k = 0; k < 5; ++k) bench.report(0);
  bench.join(1);
  ASSERT_EQ(bench.given(1).size(), 1u);
  EXPECT_EQ(bench.last_give(1).position, 5u);
  // Both count 5 now: worker 0 gets its steps 5 and 6, and then waits for step 5 of worker 1.
  bench.report(0);
  bench.report(0);
  EXPECT_TRUE(bench.given(0).empty());
  bench.report(1);
  EXPECT_EQ(bench.given(0).size(), 1u);
}

TEST(ChiefStalenessTest, AWorkerWithoutDataHoldsNobodyUpAndGoesOnFromTheLowestCount) {
  ChiefBench bench(bounded(1));
  bench.schedule(8, 1);
  bench.report(1, StepOutcome::kStreamEnded, false);
  for (int k = 0; k < 5; ++k) {
    ASSERT_EQ(bench.given(0).size(), 1u);
    bench.report(0);
  }
  // It takes steps of another kind, and is not five steps behind.
  bench.report(0);
  bench.report(0);
  EXPECT_EQ(bench.counted.size(), 7u);
  bench.schedule(6, 2);
  ASSERT_EQ(bench.given(1).size(), 1u);
  bench.report(0);
  bench.report(0);
  EXPECT_TRUE(bench.given(0).empty()) << "it is waited for again";
  bench.report(1);
  EXPECT_EQ(bench.given(0).size(), 1u);
}

TEST(ChiefStalenessTest, WhoJoinsDoesNotBeginAtTheCountOfOneThatHoldsNobodyUp) {
  ChiefBench bench(bounded(1, 3));
  bench.schedule(20, 1);
  bench.lose(2);
  bench.report(1, StepOutcome::kStreamEnded, false);
  for (int k = 0; k < 5; ++k) bench.report(0);
  bench.join(2);
  // Both count 5: worker 0 goes on to its steps 5 and 6, and then waits.
  bench.report(0);
  ASSERT_EQ(bench.given(0).size(), 1u);
  bench.report(0);
  EXPECT_TRUE(bench.given(0).empty());
  bench.report(2);
  EXPECT_EQ(bench.given(0).size(), 1u);
}

TEST(ChiefRoundsTest, ARoundHasAllItsPartsInOrder) {
  ChiefBench bench(rounds(2));
  bench.schedule(4);
  bench.report(1);
  EXPECT_EQ(bench.log_text(), "");
  EXPECT_TRUE(bench.given(1).empty()) << "the next round sees this one";
  EXPECT_EQ(bench.chief().steps(), 0);
  bench.report(0);
  EXPECT_EQ(bench.log_text(), "part 0.0, part 1.0, round 0");
  EXPECT_EQ(bench.counted, (Steps{0, 1}));
  EXPECT_EQ(bench.given(0), (Attempts{{.step = 2}}));
  EXPECT_EQ(bench.last_give(0).position, 3u);
  EXPECT_FALSE(bench.last_give(0).follows_own);
}

TEST(ChiefRoundsTest, OneWorkerDoesAllPartsWhereOthersAreLost) {
  ChiefBench bench(rounds(3));
  bench.schedule(3);
  bench.report(0);
  bench.lose(0);
  bench.lose(1);
  for (int k = 0; k < 2; ++k) bench.report(2);
  EXPECT_EQ(bench.log_text(), "part 0.0, part 1.1, part 2.0, round 0") << "what was done before the death counts";
}

TEST(ChiefRoundsTest, ALastRoundThatIsNotFullIsCompletedWhenAsked) {
  ChiefBench bench(rounds(4));
  bench.schedule(6);
  for (int32_t worker = 0; worker < 4; ++worker) bench.report(worker);
  bench.report(0);
  bench.report(1);
  EXPECT_EQ(bench.counted.size(), 4u);
  bench.chief().complete_round();
  bench.collect();
  EXPECT_EQ(bench.counted.size(), 6u);
  EXPECT_EQ(bench.chief().settled(), 8);
  EXPECT_EQ(bench.schedule(1), Steps{8}) << "a round begins";
  bench.chief().complete_round();
  bench.chief().complete_round();
  EXPECT_EQ(bench.schedule(1), Steps{12});
}

TEST(ChiefRoundsTest, APartWithoutDataIsMissing) {
  ChiefBench bench(rounds(2));
  bench.schedule(2);
  bench.report(0, StepOutcome::kStreamEnded, false);
  bench.report(1);
  EXPECT_EQ(bench.log_text(), "close 0, part 1.0, round 0");
  EXPECT_EQ(bench.chief().steps(), 1);
}

TEST(ChiefRoundsTest, AStepWithoutAPushCountsAtOnceAndIsNoPart) {
  ChiefBench bench(rounds(2));
  bench.schedule(4);
  bench.report(0, StepOutcome::kDone, false);
  EXPECT_EQ(bench.counted, Steps{0});
  bench.report(1, StepOutcome::kDone, false);
  EXPECT_EQ(bench.log_text(), "") << "a round of nothing";
  EXPECT_EQ(bench.given(0), (Attempts{{.step = 2}}));
}

TEST(ChiefRoundsTest, AStepTakesAResultOfItsOwnRound) {
  ChiefBench bench(rounds(2));
  bench.schedule(1);
  bench.chief().schedule({.after = {0}});
  bench.collect();
  bench.report(0);
  const int32_t worker = bench.given(0).empty() ? 1 : 0;
  ASSERT_EQ(bench.given(worker), (Attempts{{.step = 1}}));
  bench.report(worker);
  EXPECT_EQ(bench.log_text(), "part 0.0, part 1.0, round 0");
}

TEST(ChiefRoundsTest, TheRoundWaitsForTheSquaresOfAllServers) {
  ChiefBench bench(rounds(2, true));
  bench.schedule(4);
  bench.report(0);
  bench.report(1);
  EXPECT_EQ(bench.log_text(), "part 0.0, part 1.0, squares 0");
  bench.receive(RoundSquares{.epoch = 1, .server = 1, .round = 0});
  bench.receive(RoundSquares{.epoch = 1, .server = 1, .round = 0});
  EXPECT_TRUE(bench.summed.empty());
  bench.receive(RoundSquares{.epoch = 1, .server = 0, .round = 0});
  EXPECT_EQ(bench.summed, Steps{0});
  bench.receive(RoundSquares{.epoch = 1, .server = 0, .round = 0});
  EXPECT_EQ(bench.summed, Steps{0}) << "once";
  bench.chief().decide_round(0, 0.5, true, bench.out());
  bench.collect();
  EXPECT_EQ(bench.log.back().coefficient, 0.5);
  EXPECT_EQ(bench.counted, (Steps{0, 1}));
  bench.chief().decide_round(0, 0.5, true, bench.out());
  bench.collect();
  EXPECT_EQ(bench.log.size(), 4u) << "once";
}

TEST(ChiefRoundsTest, ARoundOfWhichAPartIsNotToBeAppliedCountsWithoutBeingApplied) {
  ChiefBench bench(rounds(2, true));
  bench.schedule(2);
  StepReport report = bench.report_of(0);
  report.apply = false;
  bench.receive(report);
  bench.report(1);
  EXPECT_EQ(bench.log_text(), "part 0.0, part 1.0, round 0 dropped") << "and nobody asks for squares";
  EXPECT_EQ(bench.counted, (Steps{0, 1}));
}

TEST(ChiefRoundsTest, ACancelledRoundIsDroppedByServersAndRoundsBeginAnew) {
  ChiefBench bench(rounds(2, true));
  bench.schedule(3);
  bench.report(0);
  bench.report(1);
  bench.chief().cancel(bench.out());
  bench.collect();
  EXPECT_EQ(bench.log_text(), "part 0.0, part 1.0, squares 0, round 0 dropped");
  EXPECT_EQ(bench.closed_steps(ClosedBecause::kCancelled), (Steps{0, 1, 2}));
  EXPECT_TRUE(bench.counted.empty());
  bench.receive(RoundSquares{.epoch = 1, .server = 0, .round = 0});
  bench.receive(RoundSquares{.epoch = 1, .server = 1, .round = 0});
  bench.chief().decide_round(0, 1, true, bench.out());
  bench.collect();
  EXPECT_TRUE(bench.summed.empty());
  EXPECT_TRUE(bench.counted.empty());
  EXPECT_EQ(bench.schedule(2), (Steps{4, 5}));
  bench.report(0);
  bench.report(1);
  EXPECT_EQ(bench.log.back().number, 2) << "the squares of round 2";
}

TEST(ChiefRoundsTest, RatesAndChangesAreBetweenRounds) {
  ChiefBench bench(rounds(2));
  const Payload rates = std::make_shared<int>();
  bench.schedule(1);
  bench.chief().set_rates(rates);
  EXPECT_EQ(bench.schedule(1), Steps{2});
  bench.report(0);
  EXPECT_EQ(bench.log_text(), "part 0.0, round 0") << "a round of one part";
  EXPECT_EQ(bench.log.back().payload, nullptr);
  bench.chief().change(rates, true);
  const int32_t worker = bench.given(0).empty() ? 1 : 0;
  bench.report(worker);
  EXPECT_EQ(bench.log_text(), "part 0.0, round 0, part 2.0, round 1, change");
  EXPECT_EQ(bench.log[3].payload, rates);
}

TEST(ChiefRoundsTest, AfterARestoreWithAnotherNumberOfWorkersRoundsBeginAtAMultipleOfIt) {
  ChiefBench bench(rounds(4), {.counted = 6, .floor = 6});
  EXPECT_EQ(bench.schedule(2), (Steps{8, 9}));
  ChiefBench same(rounds(2), {.counted = 6, .floor = 6});
  EXPECT_EQ(same.schedule(1), Steps{6});
}

TEST(ChiefOrderTest, AStepThatAWorkerGivesBackIsNotGivenAgainForThat) {
  ChiefBench bench({.workers = 2, .attempts = 0});
  bench.schedule(3, 5);
  ASSERT_EQ(bench.given(0).size(), 2U);
  bench.report(0, StepOutcome::kStreamEnded, false);
  const StepAttempt waiting = bench.given(0).front();
  bench.report(0, StepOutcome::kWithdrawn, false);
  EXPECT_TRUE(bench.given(0).empty());
  ASSERT_EQ(bench.given(1).size(), 2U);
  EXPECT_EQ(bench.given(1).back(), (StepAttempt{.step = waiting.step, .attempt = 1}));
  bench.report(1);
  bench.report(1);
  EXPECT_EQ(bench.counted.size(), 2U);
}

}  // namespace
}  // namespace lockstep::internal::server
