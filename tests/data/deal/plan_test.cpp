#include "lockstep/data/deal/plan.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

namespace lockstep::internal {
namespace {

std::vector<int64_t> order_of(int64_t size, uint64_t seed, int64_t epoch) {
  const EpochOrder order(size, true, seed, epoch);
  std::vector<int64_t> all;
  for (int64_t position = 0; position < size; ++position) all.push_back(order.sample_at(position));
  return all;
}

RC_GTEST_PROP(EpochOrder, IsAPermutation, ()) {
  const auto size = *rc::gen::inRange<int64_t>(1, 3000);
  auto all = order_of(size, *rc::gen::arbitrary<uint64_t>(), *rc::gen::inRange<int64_t>(0, 1000));
  std::sort(all.begin(), all.end());
  for (int64_t i = 0; i < size; ++i) RC_ASSERT(all[i] == i);
}

TEST(EpochOrder, DiffersByEpochAndSeedAndRepeats) {
  EXPECT_EQ(order_of(1000, 7, 3), order_of(1000, 7, 3));
  EXPECT_NE(order_of(1000, 7, 3), order_of(1000, 7, 4));
  EXPECT_NE(order_of(1000, 7, 3), order_of(1000, 8, 3));
}

TEST(EpochOrder, NeverChangesBetweenVersions) {
  // Resumed runs depend on it: these numbers stand for ever.
  EXPECT_EQ(order_of(10, 7, 0), (std::vector<int64_t>{8, 6, 9, 0, 4, 1, 7, 3, 5, 2}));
  EXPECT_EQ(order_of(5, 0, 2), (std::vector<int64_t>{4, 2, 0, 1, 3}));
}

TEST(EpochOrder, WithoutShuffleIsTheDataSets) {
  const EpochOrder order(10, false, 7, 3);
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(order.sample_at(i), i);
}

TEST(EpochOrder, GivesEveryPermutationOfFourEquallyOften) {
  std::map<std::vector<int64_t>, int> counts;
  constexpr int kEpochs = 24000;
  for (int epoch = 0; epoch < kEpochs; ++epoch) ++counts[order_of(4, 1, epoch)];
  EXPECT_EQ(counts.size(), 24u);
  double chi2 = 0;
  for (const auto& [permutation, count] : counts) chi2 += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_LT(chi2, 58.6) << "chi-square with 23 degrees of freedom: above this once in 50,000";
}

TEST(EpochOrder, LeavesNoTraceOfNeighbours) {
  // How often neighbours of the data set are neighbours in the order: 2 expected, whatever the size.
  for (const int64_t size : {100, 1000, 10007}) {
    double neighbours = 0;
    constexpr int kEpochs = 200;
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      const auto all = order_of(size, 3, epoch);
      for (int64_t i = 1; i < size; ++i) neighbours += std::abs(all[i] - all[i - 1]) == 1 ? 1 : 0;
    }
    EXPECT_NEAR(neighbours / kEpochs, 2.0, 0.5) << "size " << size;  // five standard deviations of sqrt(2 / 200)
  }
}

TEST(EpochOrder, WorksForSizesBeyond32Bits) {
  const int64_t size = (int64_t{1} << 40) + 12345;
  const EpochOrder order(size, true, 1, 1);
  for (const int64_t position : {int64_t{0}, size / 2, size - 1}) {
    EXPECT_GE(order.sample_at(position), 0);
    EXPECT_LT(order.sample_at(position), size);
  }
}

RC_GTEST_PROP(Parts, CoverEverySampleOnceInOrderWithSizesThatDifferByOne, ()) {
  const auto size = *rc::gen::inRange<int64_t>(0, 500);
  const auto batch = *rc::gen::inRange<int64_t>(1, 70);
  const auto replicas = *rc::gen::inRange<int64_t>(1, 20);
  int64_t next = 0;
  for (int64_t step = 0; step < steps_of_epoch(size, batch, false); ++step) {
    const Span whole = batch_span(size, batch, step);
    int64_t smallest = batch;
    int64_t largest = 0;
    for (int64_t r = 0; r < replicas; ++r) {
      const Span part = part_of(whole, r, replicas);
      RC_ASSERT(part.begin == next);
      next = part.end;
      smallest = std::min(smallest, part.size());
      largest = std::max(largest, part.size());
    }
    RC_ASSERT(largest - smallest <= 1);
  }
  RC_ASSERT(next == size);
}

TEST(Steps, CountTheShortOneUnlessDropped) {
  EXPECT_EQ(steps_of_epoch(10, 4, false), 3);
  EXPECT_EQ(steps_of_epoch(10, 4, true), 2);
  EXPECT_EQ(steps_of_epoch(8, 4, false), 2);
  EXPECT_EQ(steps_of_epoch(0, 4, false), 0);
  EXPECT_EQ(steps_of_epoch(3, 4, true), 0);
}

TEST(Steps, OfBatchesAndSizesNearTheLargestNumber) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(steps_of_epoch(10, kMost, false), 1);
  EXPECT_EQ(steps_of_epoch(10, kMost, true), 0);
  EXPECT_EQ(steps_of_epoch(kMost, kMost, true), 1);
  EXPECT_EQ(steps_of_epoch(kMost, kMost - 1, false), 2);
  EXPECT_EQ(steps_of_epoch(kMost, 1, false), kMost);
  const auto expect_span = [](const Span& span, int64_t begin, int64_t end) {
    EXPECT_EQ(span.begin, begin);
    EXPECT_EQ(span.end, end);
  };
  expect_span(batch_span(10, kMost, 0), 0, 10);
  expect_span(batch_span(kMost, kMost - 1, 1), kMost - 1, kMost);
  expect_span(batch_span(kMost, 1, kMost - 1), kMost - 1, kMost);
  expect_span(batch_span(kMost, 2, kMost), kMost, kMost);
  expect_span(part_of({0, kMost}, 2, 3), kMost / 3 * 2 + std::min<int64_t>(2, kMost % 3), kMost);
  const EpochOrder order(kMost, true, 1, kMost);
  for (const int64_t position : {int64_t{0}, kMost / 2, kMost - 1}) {
    EXPECT_GE(order.sample_at(position), 0);
    EXPECT_LT(order.sample_at(position), kMost);
  }
}

}  // namespace
}  // namespace lockstep::internal
