// EndOfRun under faults at any moment: a model of a run, over many seeds.
#include "tests/comm/failure/end_of_run_model.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>

namespace lockstep::internal {
namespace {

constexpr uint64_t kSeeds = 10'000;

/// Makes many runs and says for each claim how often it was broken, and by which seed first.
void expect_claims(const Faults& faults, const std::set<Claim>& claims) {
  std::array<int, kClaims.size()> broken = {};
  std::array<uint64_t, kClaims.size()> first_seed = {};
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (const Claim claim : Simulation(seed, faults).run()) {
      if (broken[claim]++ == 0) first_seed[claim] = seed;
    }
  }
  for (const Claim claim : claims) {
    EXPECT_EQ(broken[claim], 0) << "of " << kSeeds << " runs: " << kClaims[claim] << "; first with seed "
                                << first_seed[claim];
  }
}

const std::set<Claim> kAll = {kEnds, kAgrees, kTrueReason, kOnlyTaken, kAllReturned};

TEST(EndOfRunModel, EndsTheSameWayOnAllSurvivorsOfDeaths) { expect_claims({.die = true, .abort = true}, kAll); }

TEST(EndOfRunModel, EndsTheSameWayWhereWorkersLeaveAsWell) {
  expect_claims({.die = true, .abort = true, .leave = true}, kAll);
}

TEST(EndOfRunModel, EndsTheSameWayWhereWorkersFreezeAsWell) {
  expect_claims({.die = true, .abort = true, .leave = true, .stop = true}, kAll);
}

TEST(EndOfRunModel, EndsTheSameWayWhereConnectionsBetweenLivingWorkersBreakAsWell) {
  expect_claims({.die = true, .abort = true, .leave = true, .stop = true, .reset = true}, kAll);
}

// Nobody can tell a slow worker from a frozen one. Where both live on after a false alarm, each may have decided
// without the other: survivors may end differently then, and one may have returned from a call that does not count.
TEST(EndOfRunModel, EndsForATrueReasonAndCountsNoCallThatOneLacksAlsoAfterFalseAlarms) {
  expect_claims({.die = true, .abort = true, .leave = true, .stop = true, .false_alarm = true},
                {kEnds, kTrueReason, kOnlyTaken});
}

}  // namespace
}  // namespace lockstep::internal
