#include "lockstep/reduce/loops/tree_sum.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

namespace lockstep::internal {
namespace {

/// The sum of what is present, one element at a time.
template <class T>
const T* present_sum(const std::vector<std::vector<T>>& rows, const std::vector<bool>& present, int64_t element,
                     T& out) {
  struct Value {
    bool present;
    T value;
  };
  const Value sum = fold_in_tree_order(
      0, static_cast<int64_t>(rows.size()),
      [&](int64_t i) {
        return Value{present[i], rows[i][element]};
      },
      [](Value a, Value b) {
        if (!a.present) return b;
        if (!b.present) return a;
        return Value{true, static_cast<T>(a.value + b.value)};
      });
  out = sum.value;
  return sum.present ? &out : nullptr;
}

template <class T>
void check(int64_t replicas, int64_t count, int64_t offset, unsigned seed, const std::vector<bool>& present) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> values(-1000, 1000);
  std::vector<std::vector<T>> rows(replicas, std::vector<T>(offset + count));
  std::vector<const T*> inputs;
  for (int64_t r = 0; r < replicas; ++r) {
    for (T& value : rows[r]) value = static_cast<T>(values(random));
    inputs.push_back(present[r] ? rows[r].data() : nullptr);
  }
  std::vector<T> scratch(scratch_rows(replicas) * kSumBlock);
  const T* sum = tree_sum<T>()(inputs.data(), replicas, offset, count, scratch.data());
  for (int64_t i = 0; i < count; ++i) {
    T expected{};
    const T* there = present_sum(rows, present, offset + i, expected);
    ASSERT_EQ(there == nullptr, sum == nullptr);
    if (!there) continue;
    ASSERT_EQ(std::memcmp(there, sum + i, sizeof(T)), 0) << "replicas " << replicas << " element " << i;
  }
}

RC_GTEST_PROP(TreeSum, HasTheBitsOfAddingElementByElementInTreeOrder, ()) {
  const auto replicas = *rc::gen::inRange<int64_t>(1, 20);
  const auto count = *rc::gen::inRange<int64_t>(1, 300);
  const auto offset = *rc::gen::inRange<int64_t>(0, 40);
  const auto present =
      *rc::gen::container<std::vector<bool>>(replicas, rc::gen::weightedElement<bool>({{3, true}, {1, false}}));
  const auto seed = *rc::gen::arbitrary<unsigned>();
  check<float>(replicas, count, offset, seed, present);
  check<double>(replicas, count, offset, seed, present);
  check<int64_t>(replicas, count, offset, seed, present);
}

template <class T>
void check_streamed(int64_t replicas, int64_t count, int64_t offset, unsigned seed, bool mean) {
  constexpr int64_t kLine = kStreamAlignment / sizeof(T);
  const int64_t begin = offset * kLine, end = begin + count;
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> values(-1000, 1000);
  std::vector<std::vector<T>> rows(replicas, std::vector<T>(end + 1));
  std::vector<std::vector<T>> room(replicas, std::vector<T>(end + 1 + kLine));
  std::vector<const T*> inputs;
  std::vector<T*> outputs;
  const T untouched = -1;
  for (int64_t r = 0; r < replicas; ++r) {
    for (T& value : rows[r]) value = static_cast<T>(values(random));
    std::fill(room[r].begin(), room[r].end(), untouched);
    void* to = room[r].data();
    std::size_t size = room[r].size() * sizeof(T);
    inputs.push_back(rows[r].data());
    outputs.push_back(static_cast<T*>(std::align(kStreamAlignment, 1, to, size)));
  }
  stream_tree_sum<T>()(inputs.data(), replicas, begin, end, mean, outputs.data());
  const std::vector<bool> present(replicas, true);
  for (int64_t i = 0; i <= end; ++i) {
    T expected = untouched;
    if (i >= begin && i < end) {
      present_sum(rows, present, i, expected);
      if (mean) expected /= static_cast<T>(replicas);
    }
    for (const T* output : outputs) {
      ASSERT_EQ(std::memcmp(&expected, output + i, sizeof(T)), 0) << "replicas " << replicas << " element " << i;
    }
  }
}

RC_GTEST_PROP(StreamTreeSum, WritesTheSameBitsToEveryOutputAndNothingBesides, ()) {
  const auto replicas = *rc::gen::inRange<int64_t>(1, kOneRowReplicas + 1);
  const auto count = *rc::gen::inRange<int64_t>(0, 300);
  const auto offset = *rc::gen::inRange<int64_t>(0, 4);
  const auto seed = *rc::gen::arbitrary<unsigned>();
  const auto mean = *rc::gen::arbitrary<bool>();
  check_streamed<float>(replicas, count, offset, seed, mean);
  check_streamed<double>(replicas, count, offset, seed, mean);
}

TEST(StreamTreeSum, CopiesOneInputBitByBit) {
  alignas(kStreamAlignment) float output[20];
  std::vector<float> input(20, std::numeric_limits<float>::signaling_NaN());
  input[19] = std::numeric_limits<float>::denorm_min();
  const float* from = input.data();
  float* to = output;
  stream_tree_sum<float>()(&from, 1, 0, 20, /*mean=*/false, &to);
  EXPECT_EQ(std::memcmp(output, from, sizeof output), 0);
}

TEST(TreeSum, SkipsAbsentInputsInsteadOfAddingZero) {
  const float minus_zero = -0.0f;
  const float* inputs[] = {nullptr, &minus_zero, nullptr};
  std::vector<float> scratch(scratch_rows(3) * kSumBlock);
  const float* sum = tree_sum<float>()(inputs, 3, 0, 1, scratch.data());
  ASSERT_EQ(sum, &minus_zero) << "one input alone is given back itself";
  EXPECT_TRUE(std::signbit(*sum));
}

}  // namespace
}  // namespace lockstep::internal
