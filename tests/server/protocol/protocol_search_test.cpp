// Every order of events in small clusters of the real machines, and drawn ones in larger clusters: a step counts once,
// on all servers or on none. Each broken form of the protocol is found.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "tests/server/protocol/search.h"

namespace lockstep::internal::inline server {
namespace {

struct Case {
  std::string name;
  Setup setup;
  Form form = Form::kRight;
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

std::string name_of(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

class ProtocolSearchTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { form = GetParam().form; }
  void TearDown() override { form = Form::kRight; }
};

using EveryOrder = ProtocolSearchTest;

TEST_P(EveryOrder, KeepsAllPromises) {
  const Found found = explore(GetParam().setup);
  EXPECT_EQ(found.wrong, "") << found.text();
  EXPECT_TRUE(found.is_complete);
  EXPECT_GT(found.ends, 0u);
  RecordProperty("states", std::to_string(found.states));
}

INSTANTIATE_TEST_SUITE_P(
    Clusters, EveryOrder,
    ::testing::Values(
        Case{"ADeath", {.slow_notices = true, .deaths = 1}},
        Case{"ADeathAndAFailure", {.steps = 2, .deaths = 1, .failures = 1}},
        Case{"OneStepWithAll", {.steps = 1, .slow_notices = true, .deaths = 1, .crashes = 1, .cuts = 1}},
        Case{
            "WhatIsOldLivesOn",
            {.steps = 1, .keeps_old = true, .slow_notices = true, .quick = true, .deaths = 1, .crashes = 1, .cuts = 1}},
        Case{"ADeathACutAndACancel", {.quick = true, .deaths = 1, .cuts = 1, .cancels = 1}},
        Case{"ADeathACutAndACrash", {.quick = true, .deaths = 1, .crashes = 1, .cuts = 1}},
        Case{"TwoDeaths", {.quick = true, .deaths = 2}}, Case{"ThreeSteps", {.steps = 3, .quick = true, .deaths = 1}},
        Case{"ThreeServers", {.servers = 3, .quick = true, .deaths = 1}},
        Case{"AStepBesideTheOneAtHand", {.window = 2, .deaths = 1}},
        Case{"ServersReport", {.reads = true, .quick = true, .deaths = 1}},
        Case{"PullsThatComeAgain", {.steps = 2, .pulls = true, .repeats_pulls = true, .quick = true, .deaths = 1}},
        Case{"StalenessOne", {.steps = 5, .staleness = 1, .pulls = true, .quick = true}},
        Case{"StalenessOneWithTwoAtATime", {.steps = 4, .staleness = 1, .window = 2, .pulls = true, .quick = true}},
        Case{"StalenessOneAndADeath", {.steps = 2, .staleness = 1, .pulls = true, .deaths = 1}},
        Case{"Rounds", {.steps = 4, .staleness = 0, .squares = true, .pulls = true, .quick = true, .deaths = 1}},
        Case{"RoundsOfWhichTheLastIsNotFull", {.steps = 3, .staleness = 0, .quick = true, .deaths = 1}},
        Case{"RoundsAndACancel",
             {.steps = 4, .staleness = 0, .squares = true, .quick = true, .cuts = 1, .cancels = 1}}),
    name_of);

/// More of all, for a machine that has minutes and 10 GB: --gtest_also_run_disabled_tests.
INSTANTIATE_TEST_SUITE_P(
    DISABLED_LargeClusters, EveryOrder,
    ::testing::Values(Case{"ThreeStepsADeathAndACut", {.steps = 3, .quick = true, .deaths = 1, .cuts = 1}},
                      Case{"TwoDeathsAndACut", {.quick = true, .deaths = 2, .cuts = 1}},
                      Case{"ThreeServersADeathAndACut", {.servers = 3, .quick = true, .deaths = 1, .cuts = 1}},
                      Case{"AllAtOnce", {.quick = true, .deaths = 1, .crashes = 1, .cuts = 1, .cancels = 1}},
                      Case{"ADeathAndACancel", {.slow_notices = true, .deaths = 1, .cancels = 1}},
                      Case{"ADeathAndACut", {.slow_notices = true, .deaths = 1, .cuts = 1}},
                      Case{"WhatIsOldLivesOn",
                           {.steps = 1, .keeps_old = true, .slow_notices = true, .deaths = 1, .crashes = 1, .cuts = 1}},
                      Case{"ThreeStepsTwoAtATime", {.steps = 3, .window = 2, .quick = true, .deaths = 1, .cancels = 1}},
                      Case{"StalenessOne", {.steps = 3, .staleness = 1, .pulls = true, .quick = true, .deaths = 1}},
                      Case{"RoundsADeathAndACut",
                           {.steps = 4, .staleness = 0, .squares = true, .quick = true, .deaths = 1, .cuts = 1}}),
    name_of);

using DrawnOrders = ProtocolSearchTest;

TEST_P(DrawnOrders, KeepAllPromises) {
  const Found found = walk(GetParam().setup, 1000, 1);
  EXPECT_EQ(found.wrong, "") << found.text();
  EXPECT_EQ(found.ends, 1000u);
}

constexpr Setup kSixSteps = {.steps = 6,
                             .servers = 3,
                             .repeats_pulls = true,
                             .keeps_old = true,
                             .slow_notices = true,
                             .deaths = 3,
                             .crashes = 2,
                             .cuts = 3,
                             .failures = 1};

Setup six_steps(std::optional<int64_t> staleness, bool pulls, int cancels, uint32_t window = 1) {
  Setup setup = kSixSteps;
  setup.staleness = staleness;
  setup.squares = staleness == 0;
  setup.pulls = pulls;
  setup.cancels = cancels;
  setup.window = window;
  return setup;
}

INSTANTIATE_TEST_SUITE_P(SixSteps, DrawnOrders,
                         ::testing::Values(Case{"Asynchronous", six_steps({}, true, 1)},
                                           Case{"WithoutPulls", six_steps({}, false, 1)},
                                           Case{"TwoAtATime", six_steps({}, true, 1, 2)},
                                           Case{"StalenessOne", six_steps(1, true, 0)},
                                           Case{"StalenessTwoAndTwoAtATime", six_steps(2, true, 1, 2)},
                                           Case{"Rounds", six_steps(0, true, 1)}),
                         name_of);

using BrokenFormInDrawnOrders = ProtocolSearchTest;

TEST_P(BrokenFormInDrawnOrders, IsFound) {
  const Found found = walk(GetParam().setup, 1000, 1);
  EXPECT_NE(found.wrong, "") << found.text();
}

INSTANTIATE_TEST_SUITE_P(
    SixSteps, BrokenFormInDrawnOrders,
    ::testing::Values(Case{"HeldOnceByStep", six_steps({}, false, 1), Form::kHeldOnceByStep},
                      Case{"AnyAttemptIsTaken", six_steps({}, false, 1), Form::kAnyAttemptIsTaken},
                      Case{"DoneAfterTheFirstAnswer", six_steps({}, false, 1), Form::kDoneAfterTheFirstAnswer},
                      Case{"EntriesWithoutNumbers", six_steps({}, false, 1), Form::kEntriesWithoutNumbers},
                      Case{"PushesAddUp", six_steps({}, false, 1), Form::kPushesAddUp},
                      Case{"LatePushIsHeld", six_steps({}, false, 1), Form::kLatePushIsHeld},
                      Case{"LatePushIsNotAnswered", six_steps({}, false, 1), Form::kLatePushIsNotAnswered},
                      Case{"NoEpochs", six_steps({}, false, 0), Form::kNoEpochs},
                      Case{"EachServerSavesWhenItLikes", six_steps({}, false, 0), Form::kEachServerSavesWhenItLikes},
                      Case{"TheChiefSavesLast", six_steps({}, false, 0), Form::kTheChiefSavesLast},
                      Case{"ACheckpointIsOneNumber", six_steps({}, false, 0), Form::kACheckpointIsOneNumber},
                      Case{"NoClaim", six_steps({}, false, 0), Form::kNoClaim},
                      Case{"PullsNameNoPosition", six_steps(1, true, 0), Form::kPullsNameNoPosition},
                      Case{"PullsDoNotFollowOwnSteps", six_steps(2, true, 0, 2), Form::kPullsDoNotFollowOwnSteps},
                      Case{"ServersAnswerAtOnce", six_steps(1, true, 0), Form::kServersAnswerAtOnce},
                      Case{"TheBoundIsNotWaitedFor", six_steps(1, true, 0), Form::kTheBoundIsNotWaitedFor},
                      Case{"ARoundBeforeItsNorm", six_steps(0, false, 0), Form::kARoundBeforeItsNorm},
                      Case{"AppliedWhenPushed", six_steps({}, false, 0), Form::kAppliedWhenPushed},
                      Case{"WorkersCommit", six_steps({}, false, 0), Form::kWorkersCommit}),
    name_of);

using BrokenForm = ProtocolSearchTest;

TEST_P(BrokenForm, IsFound) {
  const Found found = explore(GetParam().setup, 1'000'000);
  EXPECT_NE(found.wrong, "") << found.text();
  form = Form::kRight;
  EXPECT_EQ(explore(GetParam().setup, found.states).wrong, "") << "also where nothing is broken";
}

INSTANTIATE_TEST_SUITE_P(
    Forms, BrokenForm,
    ::testing::Values(
        Case{"HeldOnceByStep", {.quick = true, .deaths = 1}, Form::kHeldOnceByStep},
        Case{"AnyAttemptIsTaken", {.quick = true, .deaths = 1}, Form::kAnyAttemptIsTaken},
        Case{"DoneAfterTheFirstAnswer", {.quick = true}, Form::kDoneAfterTheFirstAnswer},
        Case{"EntriesWithoutNumbers", {.quick = true}, Form::kEntriesWithoutNumbers},
        Case{"PushesAddUp", {.quick = true}, Form::kPushesAddUp},
        Case{"LatePushIsHeld", {.quick = true, .deaths = 1}, Form::kLatePushIsHeld},
        Case{"LatePushIsNotAnswered", {.quick = true, .cancels = 1}, Form::kLatePushIsNotAnswered},
        Case{"NoEpochs", {.keeps_old = true, .quick = true, .crashes = 1}, Form::kNoEpochs},
        Case{"EachServerSavesWhenItLikes", {.quick = true, .cuts = 1}, Form::kEachServerSavesWhenItLikes},
        Case{"TheChiefSavesLast", {.quick = true, .cuts = 1}, Form::kTheChiefSavesLast},
        Case{"ACheckpointIsOneNumber", {.quick = true, .crashes = 1, .cuts = 1}, Form::kACheckpointIsOneNumber},
        Case{"NoClaim", {.steps = 1, .quick = true, .crashes = 1, .cuts = 2}, Form::kNoClaim},
        Case{"PullsNameNoPosition",
             {.steps = 3, .staleness = 1, .pulls = true, .quick = true},
             Form::kPullsNameNoPosition},
        Case{"PullsNameNoPositionInRounds",
             {.steps = 4, .staleness = 0, .pulls = true, .quick = true},
             Form::kPullsNameNoPosition},
        Case{"PullsDoNotFollowOwnSteps",
             {.steps = 3, .staleness = 1, .window = 2, .pulls = true, .quick = true},
             Form::kPullsDoNotFollowOwnSteps},
        Case{"ServersAnswerAtOnce",
             {.steps = 4, .staleness = 0, .pulls = true, .quick = true},
             Form::kServersAnswerAtOnce},
        Case{"TheBoundIsNotWaitedFor",
             {.steps = 4, .staleness = 1, .pulls = true, .quick = true},
             Form::kTheBoundIsNotWaitedFor},
        Case{"ARoundBeforeItsNorm",
             {.steps = 4, .staleness = 0, .squares = true, .quick = true},
             Form::kARoundBeforeItsNorm},
        Case{"AppliedWhenPushed", {.quick = true, .deaths = 1}, Form::kAppliedWhenPushed},
        Case{"WorkersCommit", {.quick = true, .deaths = 1}, Form::kWorkersCommit}),
    name_of);

}  // namespace
}  // namespace lockstep::internal::server
