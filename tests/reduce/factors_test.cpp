#include "lockstep/reduce/factors.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace lockstep::internal {
namespace {

using torch::Tensor;

/// Numbers of many sizes, and zeros of both signs.
Tensor values(std::mt19937& draws, int64_t samples, int64_t size) {
  Tensor result = torch::empty({samples, size});
  for (int64_t s = 0; s < samples; ++s) {
    for (int64_t i = 0; i < size; ++i) {
      const int kind = static_cast<int>(draws() % 8);
      const float number = std::ldexp(static_cast<float>(draws() % 20001) - 10000.0f,
                                      static_cast<int>(draws() % 20) - (kind == 2 ? 124 : 24));
      result[s][i] = kind == 0 ? 0.0f : kind == 1 ? -0.0f : number;
    }
  }
  return result;
}

/// One element after the other.
Tensor one_by_one(const Tensor& left, const Tensor& right, ZeroSums zero_sums) {
  const auto l = left.accessor<float, 2>();
  const auto r = right.accessor<float, 2>();
  Tensor result = torch::empty({left.size(1), right.size(1)});
  auto out = result.accessor<float, 2>();
  for (int64_t i = 0; i < out.size(0); ++i) {
    for (int64_t j = 0; j < out.size(1); ++j) {
      float sum = 0;
      for (int64_t s = 0; s < l.size(0); ++s) sum = std::fma(l[s][i], r[s][j], sum);
      if (zero_sums == ZeroSums::kPositive) sum += 0.0f;
      out[i][j] = l.size(0) == 1 ? l[0][i] * r[0][j] : sum;
    }
  }
  return result;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
}

/// [samples, rows, columns]
class FactorsOf : public ::testing::TestWithParam<std::vector<int64_t>> {
 protected:
  void SetUp() override {
    if (!Factors::available()) GTEST_SKIP() << "this processor, or LOCKSTEP_SIMD, has no fused multiply-add";
  }
  const int64_t samples_ = GetParam()[0];
  const int64_t rows_ = GetParam()[1];
  const int64_t columns_ = GetParam()[2];
  std::mt19937 draws_{static_cast<unsigned>(samples_ * 10000 + rows_ * 100 + columns_)};
  const Tensor left_ = values(draws_, samples_, rows_);
  const Tensor right_ = values(draws_, samples_, columns_);
};

TEST_P(FactorsOf, GiveTheSumOfOuterProductsInTheOrderOfSamples) {
  for (const ZeroSums zero_sums : {ZeroSums::kPositive, ZeroSums::kSigned}) {
    EXPECT_TRUE(same_bits(Factors(left_, right_, zero_sums).product(), one_by_one(left_, right_, zero_sums)));
  }
}

TEST_P(FactorsOf, ViewsGiveTheSameAndKeepWhatTheyWere) {
  Tensor left = left_.t().clone(torch::MemoryFormat::Contiguous);
  Tensor right = torch::cat({right_, right_}, 1);
  const Factors factors(left.t(), right.narrow(1, columns_, columns_), ZeroSums::kPositive);
  left.fill_(7);
  right.fill_(7);
  EXPECT_TRUE(same_bits(factors.product(), one_by_one(left_, right_, ZeroSums::kPositive)));
}

TEST_P(FactorsOf, BlocksOfAnySizeAreThoseOfTheWholeMatrix) {
  const Factors factors(left_, right_, ZeroSums::kSigned);
  const Tensor whole = factors.product();
  const auto* const expected = static_cast<const float*>(whole.data_ptr());
  for (const int64_t room : {int64_t{0}, int64_t{100}, whole.numel(), 10 * whole.numel()}) {
    for (const int64_t size : {int64_t{1}, int64_t{7}, int64_t{64}, whole.numel()}) {
      if (whole.numel() / size > 3000) continue;
      FactorBlocks blocks(room);
      const int64_t first = size < whole.numel() ? whole.numel() / 3 : 0;  // a lane begins in the middle
      for (int64_t offset = first; offset < whole.numel(); offset += size) {
        const int64_t count = std::min(size, whole.numel() - offset);
        const float* const block = blocks.block(factors, offset, count);
        ASSERT_EQ(std::memcmp(block, expected + offset, static_cast<std::size_t>(count) * sizeof(float)), 0)
            << "room " << room << ", size " << size << ", offset " << offset;
      }
    }
  }
}

TEST_P(FactorsOf, ASumOfTwoHasTheBitsOfAddingThemUp) {
  const Factors one(left_, right_, ZeroSums::kSigned);
  const Factors two(right_.new_full({2, rows_}, 0.3), right_.new_full({2, columns_}, -1.7), ZeroSums::kPositive);
  const auto three = Factors::sum(one, two);
  ASSERT_NE(three, nullptr);
  EXPECT_EQ(three->samples(), samples_ + 2);
  EXPECT_TRUE(same_bits(three->product(), one.product() + two.product()));
  const auto four = Factors::sum(two, *three);
  ASSERT_NE(four, nullptr);
  EXPECT_TRUE(same_bits(four->product(), two.product() + three->product()));
  EXPECT_EQ(Factors::sum(*three, *four), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Shapes, FactorsOf,
                         ::testing::Values(std::vector<int64_t>{1, 1, 1}, std::vector<int64_t>{1, 9, 70},
                                           std::vector<int64_t>{2, 4, 64}, std::vector<int64_t>{3, 5, 65},
                                           std::vector<int64_t>{8, 130, 31}, std::vector<int64_t>{32, 17, 129},
                                           std::vector<int64_t>{191, 6, 33}));

}  // namespace
}  // namespace lockstep::internal
