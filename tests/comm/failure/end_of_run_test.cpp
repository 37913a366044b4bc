// How workers end a run together, step by step.
#include "lockstep/comm/network/end_of_run.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/network/run_state.h"

namespace lockstep::internal {
namespace {

using Gone = EndOfRun::Gone;
using Kind = Frame::Kind;

/// One worker of a run. It keeps what it would send.
struct OneWorker {
  OneWorker(int64_t workers, int64_t self, Calls so_far = {})
      : calls(so_far),
        end_of_run(workers, self,
                   {.freeze =
                        [this] {
                          is_frozen = true;
                          return calls;
                        },
                    .send = [this](int64_t to, const Frame& frame) { sent.emplace_back(to, frame); },
                    .end =
                        [this](const RunEnd& how) {
                          end = how;
                          ++ends;
                        }}) {}

  /// What was sent to a worker since the last call of this.
  std::vector<Frame> taken_for(int64_t worker) {
    std::vector<Frame> frames;
    for (const auto& [to, frame] : sent) {
      if (to == worker) frames.push_back(frame);
    }
    std::erase_if(sent, [&](const auto& one) { return one.first == worker; });
    return frames;
  }

  Calls calls;
  bool is_frozen = false;
  std::vector<std::pair<int64_t, Frame>> sent = {};
  std::optional<RunEnd> end = {};
  int ends = 0;
  EndOfRun end_of_run;
};

/// Brings what the workers sent to each other, until nobody says any more.
void deliver(std::vector<OneWorker*> workers) {
  bool is_quiet = false;
  while (!std::exchange(is_quiet, true)) {
    for (std::size_t from = 0; from < workers.size(); ++from) {
      for (std::size_t to = 0; to < workers.size(); ++to) {
        if (!workers[from] || !workers[to]) continue;
        for (const Frame& frame : workers[from]->taken_for(static_cast<int64_t>(to))) {
          workers[to]->end_of_run.receive(static_cast<int64_t>(from), frame);
          is_quiet = false;
        }
      }
    }
  }
}

TEST(EndOfRun, EndsTheRunOfTheSurvivorWithTheDeathAsTheReason) {
  for (const int64_t self : {0, 1}) {
    OneWorker survivor(2, self, {.taken = 3, .returned = 2});
    survivor.end_of_run.set_gone(1 - self, Gone::kDead, {});
    EXPECT_FALSE(survivor.end_of_run.has_ended());
    EXPECT_FALSE(survivor.is_frozen);
    survivor.end_of_run.notice("the other one is gone");
    EXPECT_TRUE(survivor.is_frozen);
    EXPECT_EQ(survivor.end, (RunEnd{.calls = 3, .reason = "the other one is gone"}));
    EXPECT_TRUE(survivor.sent.empty());
  }
}

TEST(EndOfRun, CountsTheCallsThatAllHaveTakenAndKeepsTheFirstReason) {
  OneWorker first(2, 0, {.taken = 5, .returned = 4});
  OneWorker second(2, 1, {.taken = 4, .returned = 4});
  second.end_of_run.notice("the first reason");
  second.end_of_run.notice("the second reason");
  EXPECT_FALSE(second.end);
  deliver({&first, &second});
  first.end_of_run.notice("the third reason");
  deliver({&first, &second});
  const RunEnd end{.calls = 4, .reason = "the first reason"};
  EXPECT_EQ(first.end, end);
  EXPECT_EQ(second.end, end);
  EXPECT_EQ(first.ends, 1);
  EXPECT_EQ(second.ends, 1);
  EXPECT_EQ(first.end_of_run.reason(), "the first reason");
}

TEST(EndOfRun, HasAReasonAlsoWhereNoneWasGivenAndCutsALongOne) {
  OneWorker silent(1, 0);
  silent.end_of_run.notice("");
  ASSERT_TRUE(silent.end);
  EXPECT_EQ(silent.end->reason, "a worker ended the run without a reason");
  OneWorker talkative(1, 0);
  talkative.end_of_run.notice(std::string(100'000, 'x'));
  EXPECT_EQ(talkative.end, (RunEnd{.calls = 0, .reason = std::string(kLongestReason, 'x')}));
}

TEST(EndOfRun, GoesOnUnderTheNextArbiterWhereTheFirstDiesInTheMiddle) {
  OneWorker first(3, 0, {.taken = 6, .returned = 5});
  OneWorker second(3, 1, {.taken = 7, .returned = 5});
  OneWorker third(3, 2, {.taken = 8, .returned = 5});
  third.end_of_run.notice("why");
  for (const Frame& frame : third.taken_for(0)) first.end_of_run.receive(2, frame);
  // Worker 0 has asked both. It dies before it has an answer, and only worker 2 has got its question.
  EXPECT_TRUE(first.is_frozen);
  for (const Frame& frame : first.taken_for(2)) third.end_of_run.receive(0, frame);
  EXPECT_EQ(third.taken_for(0), (std::vector<Frame>{{.kind = Kind::kFrozen, .calls = third.calls}}));
  for (OneWorker* const survivor : {&third, &second}) {
    survivor->end_of_run.set_gone(0, Gone::kDead, {});
    survivor->end_of_run.notice("worker 0 is gone");
    deliver({nullptr, &second, &third});
  }
  EXPECT_EQ(second.end, third.end);
  ASSERT_TRUE(second.end);
  EXPECT_EQ(second.end->calls, 7U);
  EXPECT_EQ(second.end->reason, "why");
}

TEST(EndOfRun, TellsADecisionOnWhereTheArbiterDiesBeforeAllHaveIt) {
  OneWorker second(3, 1, {.taken = 7, .returned = 6});
  OneWorker third(3, 2, {.taken = 7, .returned = 6});
  second.end_of_run.receive(0, {.kind = Kind::kEnd, .number = 0, .calls = {.taken = 6}, .text = "of worker 0"});
  third.end_of_run.set_gone(0, Gone::kDead, {});
  third.end_of_run.notice("worker 0 is gone");
  deliver({nullptr, &second, &third});
  EXPECT_EQ(second.end, (RunEnd{.calls = 6, .reason = "of worker 0"}));
  EXPECT_EQ(third.end, second.end);
}

TEST(EndOfRun, CountsWhatAWorkerThatLeftHasTaken) {
  OneWorker survivor(2, 1, {.taken = 9, .returned = 7});
  survivor.end_of_run.set_gone(0, Gone::kLeft, {.taken = 8, .returned = 8});
  survivor.end_of_run.notice("worker 0 left the run");
  EXPECT_EQ(survivor.end, (RunEnd{.calls = 8, .reason = "worker 0 left the run"}));
}

TEST(EndOfRun, CountsEveryCallFromWhichOneHasReturned) {
  OneWorker survivor(2, 0, {.taken = 9, .returned = 9});
  // Its heartbeat is older than what it sent over the connection for data.
  survivor.end_of_run.set_gone(1, Gone::kUnreachable, {.taken = 8, .returned = 7});
  survivor.end_of_run.notice("worker 1 is frozen or cut off");
  EXPECT_EQ(survivor.end, (RunEnd{.calls = 9, .reason = "worker 1 is frozen or cut off"}));
}

TEST(EndOfRun, NeverAdoptsASecondDecision) {
  OneWorker worker(3, 2, {.taken = 5, .returned = 4});
  worker.end_of_run.receive(1, {.kind = Kind::kEnd, .number = 1, .calls = {.taken = 4}, .text = "the first"});
  worker.end_of_run.receive(0, {.kind = Kind::kEnd, .number = 0, .calls = {.taken = 5}, .text = "the second"});
  EXPECT_EQ(worker.end, (RunEnd{.calls = 4, .reason = "the first"}));
  EXPECT_EQ(worker.ends, 1);
}

TEST(EndOfRun, HearsNoDecisionOfAWorkerThatThereIsNot) {
  for (const uint64_t number : {uint64_t{2}, UINT64_MAX}) {
    OneWorker worker(2, 0, {.taken = 3, .returned = 2});
    worker.end_of_run.receive(1, {.kind = Kind::kEnd, .number = number, .calls = {.taken = 4}, .text = "why"});
    EXPECT_FALSE(worker.end_of_run.has_ended());
    EXPECT_TRUE(worker.sent.empty());
  }
}

TEST(EndOfRun, AgreesWhereADecisionComesLateByWayOfADeadWorker) {
  std::vector<std::unique_ptr<OneWorker>> workers;
  for (int64_t w = 0; w < 4; ++w) {
    workers.push_back(std::make_unique<OneWorker>(4, w, Calls{.taken = w == 0 ? 5U : 6U, .returned = 4}));
  }
  const auto bring = [&](std::size_t from, std::size_t to) {
    for (const Frame& frame : workers[from]->taken_for(static_cast<int64_t>(to))) {
      workers[to]->end_of_run.receive(static_cast<int64_t>(from), frame);
    }
  };
  const auto break_connection = [&](std::size_t dead, std::size_t survivor) {
    workers[survivor]->end_of_run.set_gone(static_cast<int64_t>(dead), Gone::kDead, {});
    workers[survivor]->end_of_run.notice("a worker is gone");
  };
  workers[0]->end_of_run.notice("why");
  for (const std::size_t w : {1U, 2U, 3U}) bring(0, w);
  for (const std::size_t w : {1U, 2U, 3U}) bring(w, 0);
  // Worker 0 decides. It dies when it has told worker 2, which dies when it has told worker 3; that is on its way.
  bring(0, 2);
  ASSERT_TRUE(workers[2]->end);
  for (const std::size_t survivor : {1U, 3U}) break_connection(0, survivor);
  workers[2]->taken_for(1);
  break_connection(2, 1);
  // Worker 1 knows nothing of the decision, and goes on with worker 3, before that one hears of it.
  bring(1, 3);
  bring(3, 1);
  bring(2, 3);
  break_connection(2, 3);
  deliver({nullptr, workers[1].get(), nullptr, workers[3].get()});
  ASSERT_TRUE(workers[1]->end);
  EXPECT_EQ(workers[1]->end, workers[3]->end);
}

TEST(EndOfRun, CountsWhatAWorkerThatLeftHasTakenAlsoWhereItHadSeemedFrozen) {
  OneWorker survivor(2, 0, {.taken = 5, .returned = 3});
  survivor.end_of_run.set_gone(1, Gone::kUnreachable, {.taken = 1, .returned = 1});
  EXPECT_FALSE(survivor.end);
  survivor.end_of_run.set_gone(1, Gone::kLeft, {.taken = 4, .returned = 4});
  survivor.end_of_run.notice("worker 1 left the run");
  EXPECT_EQ(survivor.end, (RunEnd{.calls = 4, .reason = "worker 1 left the run"}));
}

TEST(EndOfRun, AsksTheNextArbiterAgainWhereTheFirstHadOnlySeemedGone) {
  OneWorker worker(3, 2, {.taken = 5, .returned = 4});
  worker.end_of_run.set_gone(0, Gone::kUnreachable, {});
  worker.end_of_run.notice("worker 0 seems frozen");
  EXPECT_EQ(worker.taken_for(1).size(), 1U);
  worker.end_of_run.receive(0, {.kind = Kind::kFreeze, .text = "why"});
  EXPECT_EQ(worker.taken_for(0).size(), 1U);
  // Worker 1 may have asked in between, and then in vain.
  worker.end_of_run.set_gone(0, Gone::kDead, {});
  worker.end_of_run.notice("worker 0 is gone");
  ASSERT_EQ(worker.taken_for(1).size(), 1U);
}

}  // namespace
}  // namespace lockstep::internal
