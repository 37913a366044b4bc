// Tests how an update's blocks are cut into a share for each lane.
#include "lockstep/gradient/block_shares.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "lockstep/core/loops/checksum.h"

namespace lockstep::internal {
namespace {

std::vector<VariableExtent> extents(const std::vector<int64_t>& bytes) {
  std::vector<VariableExtent> all;
  for (const int64_t one : bytes) all.push_back({one});
  return all;
}

/// The lane that has a block, or -1 unless exactly one has it.
int lane_with(const BlockShares& shares, int lanes, std::size_t i, int64_t block) {
  int found = -1;
  for (int lane = 0; lane < lanes; ++lane) {
    if (!shares.has({lane, 1, lanes}, i, block)) continue;
    if (found >= 0) return -1;
    found = lane;
  }
  return found;
}

TEST(BlockShares, GiveEachBlockToExactlyOneLane) {
  const std::vector<int64_t> bytes{0, 4, kBlockBytes, 7 * kBlockBytes + 8, 3, 100 * kBlockBytes, 0};
  for (const int lanes : {1, 2, 3, 8, 300}) {
    const BlockShares shares(extents(bytes), lanes);
    int last = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      for (int64_t block = 0; block < blocks_of(bytes[i]); ++block) {
        const int lane = lane_with(shares, lanes, i, block);
        ASSERT_GE(lane, last) << lanes << " lanes, variable " << i << ", block " << block;
        last = lane;
      }
    }
  }
}

TEST(BlockShares, CountBlocksOverAllVariables) {
  const BlockShares shares(extents({kBlockBytes + 1, 0, 1}), 3);
  EXPECT_EQ(shares.num_blocks(), 3);
  EXPECT_EQ(shares.first_block(0), 0);
  EXPECT_EQ(shares.first_block(1), 2);
  EXPECT_EQ(shares.first_block(2), 2);
  EXPECT_EQ(shares.first_block_of_lane(0), 0);
  EXPECT_EQ(shares.first_block_of_lane(3), 3);
}

TEST(BlockShares, GiveLanesAboutAsMuch) {
  constexpr int kLanes = 4;
  const BlockShares shares(extents({100 * kBlockBytes, kBlockBytes, 99 * kBlockBytes}), kLanes);
  for (int lane = 0; lane < kLanes; ++lane) {
    EXPECT_EQ(shares.first_block_of_lane(lane + 1) - shares.first_block_of_lane(lane), 50);
  }
}

TEST(BlockShares, KeepAVariableTogetherWhereThatIsAsked) {
  const BlockShares shares(std::vector<VariableExtent>{{10 * kBlockBytes, true}, {2 * kBlockBytes, false}}, 4);
  const int lane = lane_with(shares, 4, 0, 0);
  for (int64_t block = 1; block < 10; ++block) EXPECT_EQ(lane_with(shares, 4, 0, block), lane);
}

TEST(BlockShares, DoNotDependOnWhoAsks) {
  // Two workers of two lanes have what one worker of four lanes has.
  const BlockShares shares(extents({5 * kBlockBytes, 17, 9 * kBlockBytes}), 4);
  for (std::size_t i = 0; i < 3; ++i) {
    for (int64_t block = 0; block < blocks_of(shares.bytes(i)); ++block) {
      EXPECT_NE(shares.has({0, 2, 4}, i, block), shares.has({2, 2, 4}, i, block));
      EXPECT_TRUE(shares.has({0, 4, 4}, i, block));
    }
  }
}

TEST(BlockShares, AreEmptyWithoutVariables) {
  const BlockShares shares({}, 2);
  EXPECT_EQ(shares.num_blocks(), 0);
  EXPECT_EQ(shares.first_block_of_lane(2), 0);
  EXPECT_FALSE(shares.has({0, 2, 2}, 0, 0));
}

}  // namespace
}  // namespace lockstep::internal
