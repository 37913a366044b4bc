// The offset of two clocks, from calls in which both took part.
#include "lockstep/train/trace/clock_offset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <vector>

namespace lockstep::internal {
namespace {

TEST(ClockOffset, LiesWithinItsUncertaintyOfTheTruth) {
  std::mt19937_64 draws(7);
  for (const int64_t truth : std::initializer_list<int64_t>{-5'000'000'000, -40'000, 30'000, 123'456'789}) {
    std::vector<CallTimes> mine;
    std::vector<CallTimes> theirs;
    for (int64_t i = 0; i < 16; ++i) {
      // By one clock: both begin, and go on when both have begun and a message has come.
      const int64_t a = i * 100'000 + static_cast<int64_t>(draws() % 5'000);
      const int64_t b = i * 100'000 + static_cast<int64_t>(draws() % 5'000);
      const int64_t a_end = std::max(a, b + 1'000 + static_cast<int64_t>(draws() % 9'000));
      const int64_t b_end = std::max(b, a + 1'000 + static_cast<int64_t>(draws() % 9'000));
      theirs.push_back({a, a_end});
      mine.push_back({b + truth, b_end + truth});
    }
    const ClockOffset found = clock_offset(mine, theirs);
    EXPECT_LE(std::abs(found.nanoseconds - truth), found.uncertainty) << truth;
    EXPECT_LT(found.uncertainty, 10'000) << truth;
    EXPECT_NE(found.nanoseconds, 0) << truth;
  }
}

TEST(ClockOffset, IsZeroWhereItMayBeOneClock) {
  const std::vector<CallTimes> mine{{100, 300}, {500, 800}};
  const std::vector<CallTimes> theirs{{150, 290}, {400, 790}};
  EXPECT_EQ(clock_offset(mine, theirs).nanoseconds, 0);
  EXPECT_EQ(clock_offset({}, {}).nanoseconds, 0);
}

TEST(ClockOffset, IsNotMadeUpWhereAClockWasSetMeanwhile) {
  const std::vector<CallTimes> mine{{100, 101}, {1'000'000'000, 1'000'000'001}};
  const std::vector<CallTimes> theirs{{100, 101}, {200, 201}};
  EXPECT_EQ(clock_offset(mine, theirs).nanoseconds, 0);
}

}  // namespace
}  // namespace lockstep::internal
