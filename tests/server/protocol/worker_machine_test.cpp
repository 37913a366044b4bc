// A worker's rules: which step is at hand, what is asked again, and what is reported.
#include "lockstep/server/protocol/worker_machine.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::internal::inline server {
namespace {

constexpr WorkerId kId = {.worker = 2, .incarnation = 3};

class WorkerMachineTest : public ::testing::Test {
 protected:
  void give(uint64_t number, int64_t step, Position position = 0, uint64_t noted = 0) {
    worker.receive(GiveStep{.epoch = 1,
                            .to = kId,
                            .number = number,
                            .reports_noted = noted,
                            .step = {.step = step},
                            .position = position},
                   out);
  }
  void answer(int32_t server, int64_t step, PushVerdict verdict = PushVerdict::kHeld, Payload error = {}) {
    worker.receive(
        PushAnswer{.epoch = 1, .to = kId, .server = server, .step = {.step = step}, .verdict = verdict, .error = error},
        out);
  }
  void values(int32_t server, int64_t step, uint32_t number, Position position) {
    worker.receive(
        PulledValues{
            .epoch = 1, .to = kId, .server = server, .step = {.step = step}, .number = number, .position = position},
        out);
  }
  void push_and_return() {
    worker.push({{}, {}}, out);
    worker.finish({}, out);
  }
  /// Steps that have begun, since the last call.
  std::vector<int64_t> begun() {
    std::vector<int64_t> steps;
    for (const WorkerEvent& event : out.events) {
      if (const auto* begins = std::get_if<StepBegins>(&event)) steps.push_back(begins->step.step);
    }
    out.events.clear();
    return steps;
  }
  /// What was reported since the last call.
  std::vector<StepReport> reports() {
    std::vector<StepReport> reports;
    for (const ChiefMessage& message : out.to_chief) reports.push_back(std::get<StepReport>(message));
    out.to_chief.clear();
    return reports;
  }

  using Steps = std::vector<int64_t>;

  WorkerMachine worker{1, kId, 2};
  WorkerOutput out;
};

TEST_F(WorkerMachineTest, ReportsAStepWhenAllServersHoldItAndThenBeginsTheNext) {
  give(1, 10);
  give(2, 11);
  EXPECT_EQ(begun(), Steps{10});
  push_and_return();
  EXPECT_EQ(out.to_servers.size(), 2u);
  answer(0, 10);
  answer(0, 10);
  EXPECT_TRUE(reports().empty());
  answer(1, 10);
  const auto reported = reports();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].step.step, 10);
  EXPECT_EQ(reported[0].outcome, StepOutcome::kDone);
  EXPECT_TRUE(reported[0].pushed);
  EXPECT_EQ(begun(), Steps{11});
}

TEST_F(WorkerMachineTest, AnswersThatComeBeforeTheFunctionReturnsAreKept) {
  give(1, 0);
  worker.push({{}, {}}, out);
  answer(0, 0);
  answer(1, 0);
  EXPECT_TRUE(reports().empty());
  worker.finish({}, out);
  EXPECT_EQ(reports().size(), 1u);
}

TEST_F(WorkerMachineTest, ReportsAStepWithoutAPushAtOnce) {
  give(1, 0);
  worker.finish({}, out);
  const auto reported = reports();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_FALSE(reported[0].pushed);
}

TEST_F(WorkerMachineTest, TakesEachStepOnceAndInOrder) {
  give(2, 11);
  EXPECT_TRUE(begun().empty()) << "the one before it will come";
  give(1, 10);
  give(1, 10);
  EXPECT_EQ(begun(), Steps{10});
  worker.finish({}, out);
  EXPECT_TRUE(begun().empty());
  give(1, 10);
  EXPECT_TRUE(begun().empty());
  give(2, 11);
  EXPECT_EQ(begun(), Steps{11});
}

TEST_F(WorkerMachineTest, DropsWhatIsOfAnotherEpochOrIncarnation) {
  worker.receive(GiveStep{.epoch = 2, .to = kId, .number = 1}, out);
  worker.receive(GiveStep{.epoch = 1, .to = {.worker = 2, .incarnation = 2}, .number = 1}, out);
  EXPECT_TRUE(begun().empty());
}

TEST_F(WorkerMachineTest, TheFirstAnswerToAPullCounts) {
  give(1, 0, 5);
  EXPECT_EQ(begun(), Steps{0});
  EXPECT_EQ(worker.pull(1, {}, out), 0u);
  EXPECT_EQ(worker.pull(0, {}, out), 1u);
  EXPECT_EQ(std::get<PullRequest>(out.to_servers[0].message).position, 5u);
  values(0, 0, 0, 9);
  values(1, 0, 0, 7);
  values(1, 0, 0, 8);
  values(0, 0, 5, 9);
  values(0, 1, 1, 9);
  ASSERT_EQ(out.events.size(), 1u);
  EXPECT_EQ(std::get<ValuesArrived>(out.events[0]).position, 7u);
  values(0, 0, 1, 6);
  worker.finish({}, out);
  EXPECT_EQ(reports().at(0).pulled,
            (std::vector<PulledAt>{{.pull = 0, .server = 1, .position = 7}, {.pull = 1, .server = 0, .position = 6}}));
}

TEST_F(WorkerMachineTest, ItsPullsFollowItsLastPush) {
  const auto after = [&] {
    worker.pull(0, {}, out);
    return std::get<PullRequest>(out.to_servers.back().message).after;
  };
  give(1, 4);
  EXPECT_EQ(after(), std::nullopt);
  push_and_return();
  answer(0, 4);
  answer(1, 4);
  give(2, 9);
  EXPECT_EQ(after(), 4);
  worker.finish({}, out);
  give(3, 12);
  EXPECT_EQ(after(), 4) << "step 9 pushed nothing";
  worker.push({{}, {}}, out);
  worker.finish({.payload = std::make_shared<int>()}, out);
  answer(0, 12, PushVerdict::kTooLate);
  answer(1, 12);
  const StepReport late = reports().back();
  EXPECT_EQ(late.outcome, StepOutcome::kTooLate);
  EXPECT_EQ(late.payload, nullptr) << "a result travels with steps that are done alone";
  worker.receive(GiveStep{.epoch = 1, .to = kId, .number = 4, .step = {.step = 13}, .follows_own = false}, out);
  EXPECT_EQ(after(), std::nullopt) << "in rounds";
}

TEST_F(WorkerMachineTest, AFunctionThatThrowsIsReportedAtOnce) {
  const Payload error = std::make_shared<int>();
  give(1, 0);
  worker.push({{}, {}}, out);
  worker.finish({.outcome = StepOutcome::kFailed, .payload = error}, out);
  const auto reported = reports();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].outcome, StepOutcome::kFailed);
  EXPECT_EQ(reported[0].payload, error);
  answer(0, 0);
  EXPECT_TRUE(reports().empty());
}

TEST_F(WorkerMachineTest, APushThatIsRefusedFailsTheStep) {
  const Payload error = std::make_shared<int>();
  give(1, 0);
  push_and_return();
  answer(1, 0, PushVerdict::kRefused, error);
  answer(0, 0, PushVerdict::kRefused, std::make_shared<int>());
  const auto reported = reports();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].outcome, StepOutcome::kFailed);
  EXPECT_EQ(reported[0].payload, error);
}

TEST_F(WorkerMachineTest, AWithdrawnStepIsNotBegunButTheOneAtHandGoesOn) {
  give(1, 0);
  give(2, 1);
  begun();
  for (const int64_t step : {0, 1}) {
    worker.receive(WithdrawStep{.epoch = 1, .to = kId, .step = {.step = step}}, out);
  }
  const auto reported = reports();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].step.step, 1);
  EXPECT_EQ(reported[0].outcome, StepOutcome::kWithdrawn);
  worker.finish({}, out);
  EXPECT_EQ(reports().at(0).number, 2u);
  EXPECT_TRUE(begun().empty());
}

TEST_F(WorkerMachineTest, RepeatsWhatHasNoAnswer) {
  give(1, 0);
  worker.pull(0, {}, out);
  worker.pull(1, {}, out);
  values(0, 0, 0, 1);
  push_and_return();
  answer(1, 0);
  WorkerOutput again;
  worker.repeat_to_server(0, again);
  ASSERT_EQ(again.to_servers.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<PushRequest>(again.to_servers[0].message));
  again = {};
  worker.repeat_to_server(1, again);
  ASSERT_EQ(again.to_servers.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<PullRequest>(again.to_servers[0].message));
}

TEST_F(WorkerMachineTest, RepeatsReportsUntilTheyAreNoted) {
  for (uint64_t number = 1; number <= 3; ++number) {
    give(number, static_cast<int64_t>(number));
    worker.finish({}, out);
  }
  const auto all = reports();
  WorkerOutput again;
  worker.repeat_to_chief(again);
  EXPECT_EQ(again.to_chief.size(), 3u);
  worker.receive(ReportsNoted{.epoch = 1, .to = kId, .reports = 1}, out);
  give(4, 4, 0, 2);
  again = {};
  worker.repeat_to_chief(again);
  ASSERT_EQ(again.to_chief.size(), 1u);
  EXPECT_EQ(std::get<StepReport>(again.to_chief[0]), all[2]);
}

TEST_F(WorkerMachineTest, AReplacedOneDoesNothingMore) {
  give(1, 0);
  worker.finish({}, out);
  give(2, 1);
  begun();
  worker.receive(WorkerReplaced{.epoch = 1, .to = kId}, out);
  EXPECT_TRUE(worker.is_replaced());
  EXPECT_FALSE(worker.at_hand());
  worker.finish({}, out);
  EXPECT_EQ(reports().size(), 1u) << "of the step before; the function ran to its end";
  give(3, 2);
  EXPECT_TRUE(begun().empty());
  WorkerOutput again;
  worker.repeat_to_chief(again);
  worker.repeat_to_server(0, again);
  EXPECT_TRUE(again.to_chief.empty() && again.to_servers.empty());
}

TEST_F(WorkerMachineTest, StepsThatWaitForAStreamThatHasEndedGoBackUnbegun) {
  give(1, 10);
  give(2, 11);
  worker.receive(GiveStep{.epoch = 1, .to = kId, .number = 3, .step = {.step = 12}, .kind = 4}, out);
  EXPECT_EQ(begun(), Steps{10});
  worker.finish({.outcome = StepOutcome::kStreamEnded}, out);
  const std::vector<StepReport> ended = reports();
  ASSERT_EQ(ended.size(), 2U);
  EXPECT_EQ(ended[0].outcome, StepOutcome::kStreamEnded);
  EXPECT_EQ(ended[1].outcome, StepOutcome::kWithdrawn);
  EXPECT_EQ(ended[1].step.step, 11);
  EXPECT_EQ(begun(), Steps{12}) << "it is of another kind";
}

}  // namespace
}  // namespace lockstep::internal::server
