// Tests the plan of an update: which lane has which blocks, of targets that lie in no memory at all.
#include "lockstep/optim/update/update_plan.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace lockstep::internal {
namespace {

PlannedTarget of(int64_t bytes, bool together = false) { return {.bytes = bytes, .together = together}; }

const std::vector<PlannedTarget> kTargets{of(4),           of(7 * kBlockBytes + 8), of(0),
                                          of(kBlockBytes), of(30 * kBlockBytes),    of(12)};

UpdatePlan plan_of(const std::vector<PlannedTarget>& targets, LaneRange lanes) { return {targets, {0, 2}, lanes}; }

/// By block, counted over all targets: how often the lanes of all processes visit it.
std::vector<int> visits(const std::vector<PlannedTarget>& targets, int lanes, int lanes_of_process) {
  std::vector<int> counts(static_cast<std::size_t>(plan_of(targets, {0, lanes, lanes}).num_blocks()));
  for (int first = 0; first < lanes; first += lanes_of_process) {
    const UpdatePlan plan = plan_of(targets, {first, lanes_of_process, lanes});
    for (int lane = 0; lane < lanes_of_process; ++lane) {
      plan.for_each_range(lane, [&](const BlockRange& blocks) {
        for (int64_t block = blocks.first; block < blocks.end; ++block)
          ++counts[static_cast<std::size_t>(plan.targets()[blocks.target].first_block + block)];
      });
    }
  }
  return counts;
}

TEST(UpdatePlan, GivesEachBlockToOneLaneOfOneProcess) {
  const std::vector<int> once(1 + 8 + 1 + 30 + 1, 1);
  for (const int lanes : {1, 2, 6, 120}) {
    EXPECT_EQ(visits(kTargets, lanes, lanes), once) << lanes << " lanes of one process";
    if (lanes % 2 == 0) {
      EXPECT_EQ(visits(kTargets, lanes, lanes / 2), once) << lanes << " lanes of two processes";
      EXPECT_EQ(visits(kTargets, lanes, 2), once) << lanes << " lanes, two of each process";
    }
  }
}

TEST(UpdatePlan, VisitsALanesRangesInOrderAndNoneThatIsEmpty) {
  for (const int lanes : {1, 3, 50}) {
    const UpdatePlan plan = plan_of(kTargets, {0, lanes, lanes});
    int64_t next = 0;
    for (int lane = 0; lane < lanes; ++lane) {
      plan.for_each_range(lane, [&](const BlockRange& blocks) {
        EXPECT_LT(blocks.first, blocks.end);
        EXPECT_EQ(plan.targets()[blocks.target].first_block + blocks.first, next);
        next += blocks.end - blocks.first;
      });
    }
    EXPECT_EQ(next, plan.num_blocks());
  }
}

TEST(UpdatePlan, GivesATargetWhoseRuleTakesItWholeToOneLane) {
  const std::vector<PlannedTarget> targets{of(9 * kBlockBytes), of(9 * kBlockBytes, /*together=*/true), of(100)};
  for (const int lanes : {2, 3, 19}) {
    const UpdatePlan plan = plan_of(targets, {0, lanes, lanes});
    int ranges = 0;
    for (int lane = 0; lane < lanes; ++lane) {
      plan.for_each_range(lane, [&](const BlockRange& blocks) {
        if (blocks.target != 1) return;
        ++ranges;
        EXPECT_EQ(blocks.end - blocks.first, 9);
      });
    }
    EXPECT_EQ(ranges, 1) << lanes << " lanes";
  }
}

}  // namespace
}  // namespace lockstep::internal
