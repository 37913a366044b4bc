#include "lockstep/linear/repeated_pages.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <new>

namespace lockstep::internal {
namespace {

TEST(RepeatedPages, ShowOnePeriodOverAndOver) {
  constexpr std::size_t kBytes = 3 * RepeatedPages::kPeriod + 5;
  const RepeatedPages pages(kBytes);
  auto* const bytes = static_cast<unsigned char*>(pages.data());
  for (std::size_t i = 0; i < kBytes; i += 1009) ASSERT_EQ(bytes[i], 0) << i;
  for (std::size_t i = 0; i < RepeatedPages::kPeriod; ++i) bytes[i] = static_cast<unsigned char>(i % 253);
  for (std::size_t i = 0; i < kBytes; ++i) ASSERT_EQ(bytes[i], i % RepeatedPages::kPeriod % 253) << i;
  bytes[kBytes - 1] = 255;
  EXPECT_EQ(bytes[4], 255);
}

TEST(RepeatedPages, HaveMemoryOfTheirOwnInSomePeriodsAndInTheLast) {
  constexpr std::size_t kPeriods = 9;
  const RepeatedPages pages((kPeriods - 1) * RepeatedPages::kPeriod + 1, 3);
  ASSERT_EQ(pages.periods(), kPeriods);
  auto* const bytes = static_cast<unsigned char*>(pages.data());
  for (std::size_t i = 0; i < kPeriods; ++i) bytes[i * RepeatedPages::kPeriod] = static_cast<unsigned char>(i + 1);
  for (std::size_t i = 0; i < kPeriods; ++i) {
    const bool own = i % 3 == 0 || i == 8;
    EXPECT_EQ(pages.is_own(i), own) << i;
    EXPECT_EQ(bytes[i * RepeatedPages::kPeriod], own ? i + 1 : 8) << i;  // the last one that is not its own is period 7
  }
}

TEST(RepeatedPages, OfNoBytesAreThere) {
  const RepeatedPages pages(0);
  *static_cast<char*>(pages.data()) = 1;
}

TEST(RepeatedPages, ThatDoNotFitIntoTheAddressesAreBadAlloc) {
  EXPECT_THROW(RepeatedPages(std::size_t{1} << 60), std::bad_alloc);
  EXPECT_THROW(RepeatedPages(static_cast<std::size_t>(-1)), std::bad_alloc);
}

}  // namespace
}  // namespace lockstep::internal
