// The products of few samples: on every set of vector instructions they have the bits of the additions in the order
// that the header describes.
#include "lockstep/linear/few_samples_product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "lockstep/core/simd.h"

namespace lockstep::internal {

// Those that were compiled in; chosen by hand here.
#if defined(__x86_64__)
namespace avx2_fma {
void few_samples_forward(const FewSamplesWork& work);
void few_samples_input_gradient(const FewSamplesWork& work);
}  // namespace avx2_fma
namespace avx512 {
void few_samples_forward(const FewSamplesWork& work);
void few_samples_input_gradient(const FewSamplesWork& work);
}  // namespace avx512
#endif

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Choice {
  const char* name;
  FewSamplesProducts products;
};

std::vector<Choice> choices() {
  std::vector<Choice> result;
#if defined(__x86_64__)
  if (simd() >= Simd::kAvx2 && __builtin_cpu_supports("fma")) {
    result.push_back({"avx2", {&avx2_fma::few_samples_forward, &avx2_fma::few_samples_input_gradient}});
  }
  if (simd() == Simd::kAvx512) {
    result.push_back({"avx512", {&avx512::few_samples_forward, &avx512::few_samples_input_gradient}});
  } else {
    std::printf("not tried on this processor: avx512\n");
  }
#endif
  return result;
}

/// Numbers of both signs and many sizes, zeros of both signs, and numbers whose products underflow.
std::vector<float> numbers(std::mt19937& draws, int64_t count) {
  std::vector<float> result(static_cast<std::size_t>(count));
  for (float& number : result) {
    const int kind = static_cast<int>(draws() % 8);
    const float some = std::ldexp(static_cast<float>(draws() % 20001) - 10000.0f, static_cast<int>(draws() % 20) - 24);
    number = kind == 0 ? 0.0f : kind == 1 ? -0.0f : kind == 2 ? some * 1e-30f : some;
  }
  return result;
}

/// A product, with each matrix so many floats behind an address that malloc aligns, and marks behind the results.
class Product {
 public:
  Product(int64_t samples, int64_t rows, int64_t columns, bool is_forward, int64_t offset = 0)
      : samples_(samples), rows_(rows), columns_(columns), is_forward_(is_forward), offset_(offset) {
    std::mt19937 draws(static_cast<unsigned>(samples * 1000003 + rows * 1009 + columns));
    weight = numbers(draws, offset + rows * columns);
    input = numbers(draws, offset + samples * depth());
    bias = numbers(draws, offset + rows);
  }

  int64_t depth() const { return is_forward_ ? columns_ : rows_; }
  int64_t width() const { return is_forward_ ? rows_ : columns_; }
  float& weight_at(int64_t row, int64_t column) { return weight[at(row * columns_ + column)]; }
  float& input_at(int64_t sample, int64_t i) { return input[at(sample * depth() + i)]; }

  /// [samples, width]
  std::vector<float> run(const FewSamplesProducts& products, bool with_bias = true) const {
    const auto results = static_cast<std::size_t>(samples_ * width());
    const auto room = static_cast<std::size_t>(few_samples_scratch(samples_, rows_, columns_));
    const auto begin = static_cast<std::size_t>(offset_);
    std::vector<float> out(begin + results + kMarks, kMark);
    std::vector<float> scratch(begin + room + kMarks, kMark);
    FewSamplesWork work;
    work.weight = weight.data() + offset_;
    work.rows = rows_;
    work.columns = columns_;
    work.input = input.data() + offset_;
    work.samples = samples_;
    work.bias = with_bias ? bias.data() + offset_ : nullptr;
    work.out = out.data() + offset_;
    work.scratch = scratch.data() + offset_;
    (is_forward_ ? products.forward : products.input_gradient)(work);
    for (std::size_t i = 0; i < kMarks; ++i) {
      EXPECT_EQ(out[begin + results + i], kMark) << "written behind the results";
      EXPECT_EQ(scratch[begin + room + i], kMark) << "written behind the scratch memory";
    }
    return {out.begin() + offset_, out.begin() + offset_ + static_cast<int64_t>(results)};
  }

  /// The same, one element after the other.
  std::vector<float> one_by_one(bool with_bias = true) const {
    std::vector<float> result;
    const int64_t longest = chain_length(depth());
    for (int64_t s = 0; s < samples_; ++s) {
      for (int64_t j = 0; j < width(); ++j) {
        float sum = is_forward_ && with_bias ? bias[at(j)] : 0.0f;
        for (int64_t begin = 0; begin < depth(); begin += longest) {
          float chain = 0.0f;
          for (int64_t i = begin; i < std::min(begin + longest, depth()); ++i) {
            chain = std::fma(input[at(s * depth() + i)], weight[at(is_forward_ ? j * columns_ + i : i * columns_ + j)],
                             chain);
          }
          sum += chain;
        }
        result.push_back(sum);
      }
    }
    return result;
  }

  std::vector<float> weight, input, bias;

 private:
  static constexpr float kMark = 12345.0f;
  static constexpr std::size_t kMarks = 64;
  std::size_t at(int64_t i) const { return static_cast<std::size_t>(offset_ + i); }

  int64_t samples_, rows_, columns_;
  bool is_forward_;
  int64_t offset_;
};

/// The number of elements whose bits differ, where any two NaN are the same.
int64_t differences(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return -1;
  int64_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool same = std::memcmp(&a[i], &b[i], sizeof(float)) == 0 || (std::isnan(a[i]) && std::isnan(b[i]));
    count += same ? 0 : 1;
  }
  return count;
}

TEST(ChainLength, CutsShortSumsInHalvesAndLongOnesAt192) {
  EXPECT_EQ(chain_length(0), 0);
  EXPECT_EQ(chain_length(1), 1);
  EXPECT_EQ(chain_length(192), 192);
  EXPECT_EQ(chain_length(193), 96);
  EXPECT_EQ(chain_length(194), 97);
  EXPECT_EQ(chain_length(383), 191);
  EXPECT_EQ(chain_length(384), 192);
  EXPECT_EQ(chain_length(4096), 192);
}

/// On every set of instructions, forward and backward.
class FewSamplesProduct : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (choices_.empty()) GTEST_SKIP() << "this processor, or LOCKSTEP_SIMD, has no fused multiply-add";
  }
  /// Over all choices, the elements that are not those of one_by_one().
  int64_t wrong(const Product& product, bool with_bias = true) const {
    const std::vector<float> expected = product.one_by_one(with_bias);
    int64_t count = 0;
    for (const Choice& choice : choices_) {
      const int64_t here = differences(product.run(choice.products, with_bias), expected);
      if (here != 0) std::printf("%s\n", choice.name);
      count += std::abs(here);
    }
    return count;
  }
  const std::vector<Choice> choices_ = choices();
  const bool is_forward_ = GetParam();
};

TEST_P(FewSamplesProduct, AddsInTheOrderOfTheHeader) {
  for (const int64_t samples : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 24, 25, 31, 32, 33, 40, 49, 64, 65}) {
    EXPECT_EQ(wrong(Product(samples, 45, 67, is_forward_)), 0) << samples << " samples";
  }
}

TEST_P(FewSamplesProduct, AnyNumberOfRowsAndColumns) {
  for (const int64_t size : {1, 2, 5, 6, 7, 11, 12, 13, 15, 16, 17, 24, 31, 32, 33, 63, 64, 65, 97}) {
    for (const int64_t samples : {3, 8, 19}) {
      EXPECT_EQ(wrong(Product(samples, size, 50, is_forward_)), 0) << samples << " samples, " << size << " rows";
      EXPECT_EQ(wrong(Product(samples, 50, size, is_forward_)), 0) << samples << " samples, " << size << " columns";
    }
  }
}

TEST_P(FewSamplesProduct, AnyDepth) {
  for (const int64_t depth : {191, 192, 193, 194, 255, 256, 257, 383, 384, 385, 400, 577, 768, 1000}) {
    const Product product(7, is_forward_ ? 29 : depth, is_forward_ ? depth : 29, is_forward_);
    EXPECT_EQ(wrong(product), 0) << "depth " << depth;
  }
}

TEST_P(FewSamplesProduct, MoreColumnsThanAPanel) {
  for (const int64_t columns : {1023, 1024, 1025, 1041, 2048, 2101}) {
    EXPECT_EQ(wrong(Product(9, 70, columns, is_forward_)), 0) << columns << " columns";
  }
}

TEST_P(FewSamplesProduct, AnyAddress) {
  for (const int64_t offset : {1, 3, 5, 15}) {
    EXPECT_EQ(wrong(Product(10, 75, 131, is_forward_, offset)), 0) << "offset " << offset;
  }
}

TEST_P(FewSamplesProduct, WithoutBias) { EXPECT_EQ(wrong(Product(5, 40, 300, is_forward_), false), 0); }

TEST_P(FewSamplesProduct, NothingToDo) {
  EXPECT_EQ(wrong(Product(0, 20, 30, is_forward_)), 0);
  EXPECT_EQ(wrong(Product(5, 0, 30, is_forward_)), 0);
  EXPECT_EQ(wrong(Product(5, 20, 0, is_forward_)), 0);
  EXPECT_EQ(wrong(Product(5, 20, 0, is_forward_), false), 0);
}

TEST_P(FewSamplesProduct, EachSampleIsByItself) {
  const Product all(21, 37, 210, is_forward_);
  for (const Choice& choice : choices_) {
    const std::vector<float> together = all.run(choice.products);
    for (const int64_t s : {0, 1, 7, 20}) {
      Product alone(1, 37, 210, is_forward_);
      alone.weight = all.weight;
      alone.bias = all.bias;
      alone.input.assign(all.input.begin() + s * all.depth(), all.input.begin() + (s + 1) * all.depth());
      const std::vector<float> mine(together.begin() + s * all.width(), together.begin() + (s + 1) * all.width());
      EXPECT_EQ(differences(alone.run(choice.products), mine), 0) << choice.name << " sample " << s;
    }
  }
}

TEST_P(FewSamplesProduct, InfinityAndNanStayInTheirSample) {
  Product product(11, 53, 61, is_forward_);
  const std::vector<float> before = product.one_by_one();
  product.input_at(3, 17) = kInfinity;
  product.input_at(4, 18) = kNan;
  EXPECT_EQ(wrong(product), 0);
  for (const Choice& choice : choices_) {
    const std::vector<float> after = product.run(choice.products);
    for (int64_t s = 0; s < 11; ++s) {
      if (s == 3 || s == 4) continue;
      const int64_t begin = s * product.width();
      const int64_t end = begin + product.width();
      EXPECT_EQ(
          differences({before.begin() + begin, before.begin() + end}, {after.begin() + begin, after.begin() + end}), 0)
          << choice.name << " sample " << s;
    }
  }
}

TEST_P(FewSamplesProduct, InfinityAndNanInTheWeight) {
  Product product(6, 53, 61, is_forward_);
  product.weight_at(0, 0) = kNan;
  product.weight_at(20, 60) = -kInfinity;
  product.weight_at(52, 30) = kInfinity;
  EXPECT_EQ(wrong(product), 0);
}

TEST_P(FewSamplesProduct, ProductsThatUnderflowBelowZero) {
  // Each chain is -0: the sum is +0 without a bias, and -0 with the bias -0.
  Product product(5, 30, 30, is_forward_);
  std::fill(product.weight.begin(), product.weight.end(), -1e-30f);
  std::fill(product.input.begin(), product.input.end(), 1e-30f);
  std::fill(product.bias.begin(), product.bias.end(), -0.0f);
  EXPECT_EQ(wrong(product), 0);
  EXPECT_EQ(wrong(product, false), 0);
  for (const Choice& choice : choices_) {
    EXPECT_FALSE(std::signbit(product.run(choice.products, false)[0]));
    EXPECT_EQ(std::signbit(product.run(choice.products)[0]), is_forward_);
  }
}

TEST_P(FewSamplesProduct, TheProcessorsChoiceIsOneOfThem) {
  const FewSamplesProducts* const chosen = few_samples_products();
  ASSERT_NE(chosen, nullptr);
  for (const int64_t samples : {1, 8, 9, 16, 17}) {  // it may differ with the number of samples
    const Product product(samples, 100, 100, is_forward_);
    EXPECT_EQ(differences(product.run(*chosen), product.one_by_one()), 0) << samples << " samples";
  }
}

INSTANTIATE_TEST_SUITE_P(, FewSamplesProduct, ::testing::Bool(),
                         [](const auto& form) { return std::string(form.param ? "Forward" : "InputGradient"); });

}  // namespace
}  // namespace lockstep::internal
