#include "lockstep/core/loops/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace lockstep::internal {
namespace {

std::vector<float> values(std::size_t count) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> result(count);
  for (float& value : result) value = normal(random);
  return result;
}

uint64_t of(const std::vector<float>& memory) {
  return checksum(memory.data(), static_cast<int64_t>(memory.size() * 4));
}

class ChecksumOf : public ::testing::TestWithParam<std::size_t> {};

TEST_P(ChecksumOf, SeesEverySingleFlippedBit) {
  auto memory = values(GetParam());
  const uint64_t before = of(memory);
  for (std::size_t bit = 0; bit < memory.size() * 32; ++bit) {
    uint32_t word;
    std::memcpy(&word, &memory[bit / 32], 4);
    word ^= 1u << (bit % 32);
    std::memcpy(&memory[bit / 32], &word, 4);
    ASSERT_NE(of(memory), before) << "bit " << bit;
    word ^= 1u << (bit % 32);
    std::memcpy(&memory[bit / 32], &word, 4);
  }
  EXPECT_EQ(of(memory), before);
}

TEST_P(ChecksumOf, SeesChangesOfTheWholeThatCancelInPlainSums) {
  const auto memory = values(GetParam());
  const auto changed = [&](auto change) {
    auto copy = memory;
    change(copy);
    return copy != memory && of(copy) == of(memory);
  };
  EXPECT_FALSE(changed([](auto& v) {
    for (float& x : v) x = -x;
  })) << "all signs";
  EXPECT_FALSE(changed([](auto& v) {
    for (float& x : v) x *= 2;
  })) << "all doubled";
  EXPECT_FALSE(changed([](auto& v) { std::reverse(v.begin(), v.end()); })) << "reversed";
  EXPECT_FALSE(changed([](auto& v) { std::swap(v.front(), v.back()); })) << "two swapped";
  EXPECT_FALSE(changed([](auto& v) { std::rotate(v.begin(), v.begin() + v.size() / 2, v.end()); })) << "halves swapped";
  EXPECT_FALSE(changed([](auto& v) { std::fill(v.begin(), v.end(), 0.f); })) << "all zero";
}

INSTANTIATE_TEST_SUITE_P(Sizes, ChecksumOf, ::testing::Values(1, 3, 15, 16, 17, 64, 250, 2048));

TEST(Checksum, DependsOnTheLengthOfZeros) {
  const std::vector<float> zeros(64, 0.f);
  EXPECT_NE(checksum(zeros.data(), 64), checksum(zeros.data(), 128));
  EXPECT_NE(checksum(zeros.data(), 4), checksum(zeros.data(), 8));
}

}  // namespace
}  // namespace lockstep::internal
