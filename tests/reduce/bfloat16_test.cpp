#include "lockstep/reduce/loops/bfloat16.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace lockstep::internal {
namespace {

/// Numbers of all exponents, both signs, ties and their neighbours, infinities, NaNs and denormals.
std::vector<float> numbers() {
  std::vector<float> all;
  for (uint32_t upper = 0; upper < 0x10000; upper += 7) {
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const uint32_t bits = upper << 16 | lower;
      float number = 0;
      std::memcpy(&number, &bits, sizeof number);
      all.push_back(number);
    }
  }
  return all;
}

TEST(Bfloat16, IsRoundedAsLibTorchRoundsIt) {
  std::vector<float> from = numbers();
  const auto count = static_cast<int64_t>(from.size());
  const torch::Tensor expected = torch::from_blob(from.data(), {count}).to(torch::kBFloat16);
  std::vector<Bfloat16> rounded(from.size());
  to_bfloat16(from.data(), count, rounded.data());
  const auto* const theirs = static_cast<const Bfloat16*>(expected.data_ptr());
  for (std::size_t i = 0; i < from.size(); ++i) {
    EXPECT_EQ(rounded[i], std::isnan(from[i]) ? 0x7FC0 : theirs[i]) << from[i];
  }
  std::vector<float> back(from.size());
  from_bfloat16(rounded.data(), count, back.data());
  const torch::Tensor exact = expected.to(torch::kFloat);
  const auto* const values = exact.data_ptr<float>();
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (std::isnan(from[i])) {
      EXPECT_TRUE(std::isnan(back[i]));
    } else {
      EXPECT_EQ(back[i], values[i]);
    }
  }
}

TEST(Bfloat16, OfNoNumbersIsNothing) {
  to_bfloat16(nullptr, 0, nullptr);
  from_bfloat16(nullptr, 0, nullptr);
}

}  // namespace
}  // namespace lockstep::internal
