// The products of few samples: on every set of vector instructions, and in every order, they have the bits of the
// additions that the header describes.
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

#include "lockstep/core/loops/simd.h"

// Those that were compiled in; chosen by hand here.
#if defined(__x86_64__)
namespace lockstep::internal::inline linear {
namespace avx2_fma {
void few_samples_forward(const FewSamplesWork& work);
void few_samples_input_gradient(const FewSamplesWork& work);
}  // namespace avx2_fma
namespace avx512 {
void few_samples_forward(const FewSamplesWork& work);
void few_samples_input_gradient(const FewSamplesWork& work);
}  // namespace avx512
}  // namespace lockstep::internal::linear
#endif

namespace lockstep::internal {

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
    result.push_back({"avx2", {&linear::avx2_fma::few_samples_forward, &linear::avx2_fma::few_samples_input_gradient}});
  }
  if (simd() == Simd::kAvx512) {
    result.push_back({"avx512", {&linear::avx512::few_samples_forward, &linear::avx512::few_samples_input_gradient}});
  } else {
    std::printf("not tried on this processor: avx512\n");
  }
#else
  if (few_samples_products()) result.push_back({name_of(simd()), *few_samples_products()});
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

/// Which product, in which order.
struct Form {
  const char* name;
  bool is_forward;
  SumOrder order;
};

/// A product, with each matrix so many floats behind an address that malloc aligns, and marks behind the results.
class Product {
 public:
  Product(int64_t samples, int64_t rows, int64_t columns, const Form& form, int64_t offset = 0)
      : samples_(samples),
        rows_(rows),
        columns_(columns),
        is_forward_(form.is_forward),
        order_(form.order),
        offset_(offset) {
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
    work.order = order_;
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
    for (int64_t s = 0; s < samples_; ++s) {
      for (int64_t j = 0; j < width(); ++j) {
        const bool biased = is_forward_ && with_bias;
        if (order_ == SumOrder::kInterleavedChains) {
          const float sum = sum_of_chains(s, j);
          result.push_back((biased ? bias[at(j)] : 0.0f) + sum);
          continue;
        }
        float sum = biased ? bias[at(j)] : order_ == SumOrder::kChainsOf192 ? 0.0f : -0.0f;
        for (int64_t begin = 0, end = 0; begin < depth(); begin = end) {
          end = chain_end(order_, depth(), begin);
          float chain = 0.0f;
          for (int64_t i = begin; i < end; ++i) chain = add_product(s, j, i, chain);
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
  float add_product(int64_t s, int64_t j, int64_t i, float sum) const {
    return std::fma(input[at(s * depth() + i)], weight[at(is_forward_ ? j * columns_ + i : i * columns_ + j)], sum);
  }
  float sum_of_chains(int64_t s, int64_t j) const {
    float lanes[16] = {};
    for (int64_t i = 0; i < depth(); ++i) lanes[i % 16] = add_product(s, j, i, lanes[i % 16]);
    float sums[4];
    for (int i = 0; i < 4; ++i) sums[i] = lanes[i] + lanes[i + 4] + lanes[i + 8] + lanes[i + 12];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }

  int64_t samples_, rows_, columns_;
  bool is_forward_;
  SumOrder order_;
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

std::vector<int64_t> chains(SumOrder order, int64_t depth) {
  std::vector<int64_t> lengths;
  for (int64_t begin = 0, end = 0; begin < depth; begin = end) {
    end = chain_end(order, depth, begin);
    lengths.push_back(end - begin);
  }
  return lengths;
}

using Lengths = std::vector<int64_t>;

TEST(ChainEnd, CutsShortSumsInHalvesAndLongOnesAt192) {
  const auto cut = [](int64_t depth) { return chains(SumOrder::kChainsOf192, depth); };
  EXPECT_EQ(cut(0), Lengths{});
  EXPECT_EQ(cut(1), Lengths{1});
  EXPECT_EQ(cut(192), Lengths{192});
  EXPECT_EQ(cut(193), (Lengths{96, 96, 1}));
  EXPECT_EQ(cut(194), (Lengths{97, 97}));
  EXPECT_EQ(cut(383), (Lengths{191, 191, 1}));
  EXPECT_EQ(cut(384), (Lengths{192, 192}));
  EXPECT_EQ(cut(500), (Lengths{192, 192, 116}));
}

TEST(ChainEnd, CutsAt384AndBelowTwiceThatInHalves) {
  const auto cut = [](int64_t depth) { return chains(SumOrder::kChainsOf384, depth); };
  EXPECT_EQ(cut(384), Lengths{384});
  EXPECT_EQ(cut(385), (Lengths{193, 192}));
  EXPECT_EQ(cut(767), (Lengths{384, 383}));
  EXPECT_EQ(cut(769), (Lengths{384, 384, 1}));
  EXPECT_EQ(cut(1000), (Lengths{384, 384, 232}));
}

TEST(ChainEnd, OfBalancedChainsCutsTheLastTwoInHalves) {
  const auto cut = [](int64_t depth) { return chains(SumOrder::kBalancedChainsOf384, depth); };
  EXPECT_EQ(cut(0), Lengths{});
  EXPECT_EQ(cut(384), Lengths{384});
  EXPECT_EQ(cut(385), (Lengths{193, 192}));
  EXPECT_EQ(cut(768), (Lengths{384, 384}));
  EXPECT_EQ(cut(769), (Lengths{384, 193, 192}));
  EXPECT_EQ(cut(1024), (Lengths{384, 320, 320}));
  EXPECT_EQ(cut(2048), (Lengths{384, 384, 384, 384, 256, 256}));
}

/// On every set of instructions.
class FewSamplesProduct : public ::testing::TestWithParam<Form> {
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
  const Form form_ = GetParam();
};

TEST_P(FewSamplesProduct, AddsInTheOrderOfTheHeader) {
  for (const int64_t samples : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 24, 25, 31, 32, 33, 40, 49, 64, 65}) {
    EXPECT_EQ(wrong(Product(samples, 45, 67, form_)), 0) << samples << " samples";
  }
}

TEST_P(FewSamplesProduct, AnyNumberOfRowsAndColumns) {
  for (const int64_t size : {1, 2, 5, 6, 7, 11, 12, 13, 15, 16, 17, 24, 31, 32, 33, 63, 64, 65, 97}) {
    for (const int64_t samples : {3, 8, 19}) {
      EXPECT_EQ(wrong(Product(samples, size, 50, form_)), 0) << samples << " samples, " << size << " rows";
      EXPECT_EQ(wrong(Product(samples, 50, size, form_)), 0) << samples << " samples, " << size << " columns";
    }
  }
}

TEST_P(FewSamplesProduct, AnyDepth) {
  for (const int64_t depth : {191, 192, 193, 194, 255, 256, 257, 383, 384, 385, 400, 577, 767, 768, 769, 1000, 1153}) {
    const Product product(7, form_.is_forward ? 29 : depth, form_.is_forward ? depth : 29, form_);
    EXPECT_EQ(wrong(product), 0) << "depth " << depth;
  }
}

TEST_P(FewSamplesProduct, MoreColumnsThanAPanel) {
  for (const int64_t columns : {1023, 1024, 1025, 1041, 2048, 2101}) {
    EXPECT_EQ(wrong(Product(9, 70, columns, form_)), 0) << columns << " columns";
  }
}

TEST_P(FewSamplesProduct, AnyAddress) {
  for (const int64_t offset : {1, 3, 5, 15}) {
    EXPECT_EQ(wrong(Product(10, 75, 131, form_, offset)), 0) << "offset " << offset;
  }
}

TEST_P(FewSamplesProduct, WithoutBias) { EXPECT_EQ(wrong(Product(5, 40, 300, form_), false), 0); }

TEST_P(FewSamplesProduct, NothingToDo) {
  EXPECT_EQ(wrong(Product(0, 20, 30, form_)), 0);
  EXPECT_EQ(wrong(Product(5, 0, 30, form_)), 0);
  EXPECT_EQ(wrong(Product(5, 20, 0, form_)), 0);
  EXPECT_EQ(wrong(Product(5, 20, 0, form_), false), 0);
}

TEST_P(FewSamplesProduct, EachSampleIsByItself) {
  const Product all(21, 37, 210, form_);
  for (const Choice& choice : choices_) {
    const std::vector<float> together = all.run(choice.products);
    for (const int64_t s : {0, 1, 7, 20}) {
      Product alone(1, 37, 210, form_);
      alone.weight = all.weight;
      alone.bias = all.bias;
      alone.input.assign(all.input.begin() + s * all.depth(), all.input.begin() + (s + 1) * all.depth());
      const std::vector<float> mine(together.begin() + s * all.width(), together.begin() + (s + 1) * all.width());
      EXPECT_EQ(differences(alone.run(choice.products), mine), 0) << choice.name << " sample " << s;
    }
  }
}

TEST_P(FewSamplesProduct, InfinityAndNanStayInTheirSample) {
  Product product(11, 53, 61, form_);
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
  Product product(6, 53, 61, form_);
  product.weight_at(0, 0) = kNan;
  product.weight_at(20, 60) = -kInfinity;
  product.weight_at(52, 30) = kInfinity;
  EXPECT_EQ(wrong(product), 0);
}

TEST_P(FewSamplesProduct, ProductsThatUnderflowBelowZero) {
  // Each chain is -0. With the bias -0 a sum is -0. Without a bias it is +0 only where it begins with +0.
  Product product(5, 30, 30, form_);
  std::fill(product.weight.begin(), product.weight.end(), -1e-30f);
  std::fill(product.input.begin(), product.input.end(), 1e-30f);
  std::fill(product.bias.begin(), product.bias.end(), -0.0f);
  EXPECT_EQ(wrong(product), 0);
  EXPECT_EQ(wrong(product, false), 0);
  const bool begins_with_zero = form_.order == SumOrder::kChainsOf192 || form_.order == SumOrder::kInterleavedChains;
  for (const Choice& choice : choices_) {
    EXPECT_EQ(std::signbit(product.run(choice.products, false)[0]), !begins_with_zero);
    EXPECT_EQ(std::signbit(product.run(choice.products)[0]), form_.is_forward || !begins_with_zero);
  }
}

TEST_P(FewSamplesProduct, TheProcessorsChoiceIsOneOfThem) {
  const FewSamplesProducts* const chosen = few_samples_products();
  ASSERT_NE(chosen, nullptr);
  for (const int64_t samples : {1, 8, 9, 16, 17}) {  // it may differ with the number of samples
    const Product product(samples, 100, 100, form_);
    EXPECT_EQ(differences(product.run(*chosen), product.one_by_one()), 0) << samples << " samples";
  }
}

INSTANTIATE_TEST_SUITE_P(, FewSamplesProduct,
                         ::testing::Values(Form{"Forward192", true, SumOrder::kChainsOf192},
                                           Form{"Forward384", true, SumOrder::kChainsOf384},
                                           Form{"ForwardBalanced384", true, SumOrder::kBalancedChainsOf384},
                                           Form{"ForwardInterleaved", true, SumOrder::kInterleavedChains},
                                           Form{"InputGradient192", false, SumOrder::kChainsOf192},
                                           Form{"InputGradient384", false, SumOrder::kChainsOf384},
                                           Form{"InputGradientBalanced384", false, SumOrder::kBalancedChainsOf384}),
                         [](const auto& form) { return std::string(form.param.name); });

}  // namespace
}  // namespace lockstep::internal
