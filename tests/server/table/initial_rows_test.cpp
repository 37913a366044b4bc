// The weights of rows that nobody has pushed, and on which server a row lies.
#include "lockstep/server/table/initial_rows.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/core/loops/simd.h"
#include "lockstep/server/table/loops/uniform_row.h"
#include "lockstep/server/table/row_hash.h"
#include "tests/support/errors.h"

namespace lockstep::internal {

// Those that were compiled in; chosen by hand here.
#define LOCKSTEP_DECLARE(set)                                                                    \
  namespace server::set {                                                                        \
  void random_words(uint64_t key, uint64_t row, int64_t count, uint32_t* to);                    \
  void uniform_row(uint64_t key, uint64_t row, float low, float high, int64_t count, float* to); \
  }
LOCKSTEP_DECLARE(plain)
#if defined(__x86_64__)
LOCKSTEP_DECLARE(avx2)
LOCKSTEP_DECLARE(avx2_vaes)
LOCKSTEP_DECLARE(avx512)
#endif
#undef LOCKSTEP_DECLARE

namespace {

using testing::expect_error;

/// What this processor can run.
std::vector<std::pair<RandomWords, UniformRow>> sets_here() {
  std::vector<std::pair<RandomWords, UniformRow>> sets{{&server::plain::random_words, &server::plain::uniform_row}};
#if defined(__x86_64__)
  const Simd most = simd_setting("");
  if (most >= Simd::kAvx2) sets.emplace_back(&server::avx2::random_words, &server::avx2::uniform_row);
  if (most >= Simd::kAvx2Vaes) sets.emplace_back(&server::avx2_vaes::random_words, &server::avx2_vaes::uniform_row);
  if (most >= Simd::kAvx512) sets.emplace_back(&server::avx512::random_words, &server::avx512::uniform_row);
#endif
  return sets;
}

std::vector<float> weights_of(const EmbeddingOptions& options, uint64_t seed, int64_t row) {
  std::vector<float> weights(static_cast<std::size_t>(options.dim));
  InitialRows(options, seed).write(row, weights.data());
  return weights;
}

TEST(RandomWordsOfARow, ArePhiloxs) {
  // Of the known answers of Random123, the one for key 0 and counter 0.
  for (const auto& [words, uniform] : sets_here()) {
    std::array<uint32_t, 32> got{};
    words(0, 0, 32, got.data());
    EXPECT_EQ((std::array{got[0], got[8], got[16], got[24]}),
              (std::array{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  }
}

TEST(RandomWordsOfARow, HaveTheSameBitsOnEveryProcessorAndInEveryWidth) {
  std::vector<uint32_t> most(70);
  server::plain::random_words(3, ~uint64_t{5}, 70, most.data());
  std::vector<float> numbers(70);
  server::plain::uniform_row(3, ~uint64_t{5}, -1, 2, 70, numbers.data());
  for (const auto& [words, uniform] : sets_here()) {
    for (int64_t count = 0; count <= 70; ++count) {
      const auto size = static_cast<std::size_t>(count);
      std::vector<uint32_t> got(size + 1, 77);
      words(3, ~uint64_t{5}, count, got.data());
      EXPECT_EQ(got.back(), 77u) << "wrote behind the end";
      got.pop_back();
      EXPECT_EQ(got, std::vector(most.begin(), most.begin() + count));
      std::vector<float> got_numbers(size);
      uniform(3, ~uint64_t{5}, -1, 2, count, got_numbers.data());
      EXPECT_EQ(got_numbers, std::vector(numbers.begin(), numbers.begin() + count));
    }
  }
}

TEST(InitialWeights, NeverChange) {
  // Computed by a program of another language. Rows that were never pushed are in no checkpoint, so that these numbers
  // must hold in every version.
  const EmbeddingOptions options{.name = "users", .dim = 33};
  const std::vector<float> zero = weights_of(options, 7, 0);
  EXPECT_EQ((std::array{zero[0], zero[1], zero[8], zero[31], zero[32]}),
            (std::array{-0.0410763808f, 0.0405521728f, -0.00208648294f, 0.0344705246f, 0.0382700376f}));
  const std::vector<float> far = weights_of(options, 7, 123456789012);
  EXPECT_EQ((std::array{far[0], far[1], far[8], far[31], far[32]}),
            (std::array{0.00917238742f, -0.0257217884f, -0.00345950201f, -0.0399149358f, 0.013151478f}));
}

TEST(InitialWeights, DifferBySeedTableAndRow) {
  const EmbeddingOptions users{.name = "users", .dim = 4};
  const EmbeddingOptions items{.name = "items", .dim = 4};
  const auto one = weights_of(users, 7, 1);
  EXPECT_EQ(one, weights_of(users, 7, 1));
  EXPECT_NE(one, weights_of(users, 8, 1));
  EXPECT_NE(one, weights_of(items, 7, 1));
  EXPECT_NE(one, weights_of(users, 7, 2));
  EXPECT_NE(one, weights_of(users, 7, int64_t{1} << 32 | 1));
}

TEST(InitialWeights, AreSpreadAsAsked) {
  const auto moments = [](const RowInitial& initial) {
    double sum = 0, squares = 0, low = 1e9, high = -1e9;
    constexpr int64_t kRows = 2000;
    for (int64_t row = 0; row < kRows; ++row) {
      for (const float x : weights_of({.name = "t", .dim = 50, .initial = initial}, 1, row)) {
        sum += x;
        squares += double{x} * x;
        low = std::min<double>(low, x);
        high = std::max<double>(high, x);
      }
    }
    const double mean = sum / (kRows * 50);
    return std::array{mean, std::sqrt(squares / (kRows * 50) - mean * mean), low, high};
  };
  // Five standard errors of 100,000 draws.
  const auto uniform = moments(RowInitial::uniform(1, 3));
  EXPECT_NEAR(uniform[0], 2, 5 * 0.577 / 316);
  EXPECT_NEAR(uniform[1], 2 / std::sqrt(12), 0.01);
  EXPECT_GE(uniform[2], 1);
  EXPECT_LE(uniform[3], 3);
  EXPECT_GT(uniform[3] - uniform[2], 1.999);
  const auto normal = moments(RowInitial::normal(-1, 2));
  EXPECT_NEAR(normal[0], -1, 5 * 2 / 316.0);
  EXPECT_NEAR(normal[1], 2, 0.025);
  EXPECT_GT(normal[3], 6);
}

TEST(InitialWeights, AreAConstantOrWhatAFunctionWrites) {
  EXPECT_EQ(weights_of({.name = "t", .dim = 3, .initial = 0.25}, 1, 9), (std::vector<float>{0.25, 0.25, 0.25}));
  EXPECT_EQ(weights_of({.name = "t", .dim = 3, .initial = 0}, 1, 9), (std::vector<float>{0, 0, 0}));
  const auto count_up = [](int64_t row, std::span<float> weights) {
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(row) + static_cast<float>(i) / 4;
  };
  EXPECT_EQ(weights_of({.name = "t", .dim = 3, .initial = count_up}, 1, 9), (std::vector<float>{9, 9.25, 9.5}));
}

TEST(InitialWeights, OfOtherDtypesAreTheseNumbersRounded) {
  const auto floats = weights_of({.name = "t", .dim = 5}, 1, 3);
  std::vector<double> doubles(5);
  InitialRows({.name = "t", .dim = 5, .dtype = c10::kDouble}, 1).write(3, doubles.data());
  std::vector<c10::BFloat16> halves(5);
  InitialRows({.name = "t", .dim = 5, .dtype = c10::kBFloat16}, 1).write(3, halves.data());
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(doubles[i], double{floats[i]});
    EXPECT_EQ(halves[i], c10::BFloat16(floats[i]));
  }
}

TEST(NormalQuantiles, AreThoseOfTheTables) {
  EXPECT_EQ(normal_quantile(0.5), 0);
  EXPECT_NEAR(normal_quantile(0.975), 1.959963984540054, 1e-14);
  EXPECT_NEAR(normal_quantile(0.9), 1.2815515655446004, 1e-14);
  EXPECT_NEAR(normal_quantile(0.001), -3.090232306167813, 1e-13);
  EXPECT_NEAR(normal_quantile(1e-10), -6.361340902404056, 1e-12);
  for (const double p : {0.074, 0.0751, 0.3, 0.0001}) EXPECT_NEAR(normal_quantile(p), -normal_quantile(1 - p), 1e-11);
}

TEST(ARow, LiesOnTheServerThatTheRuleSays) {
  // Computed by a program of another language: floor(S h / 4096), h the upper 12 bits of the mix of row and table.
  const uint64_t users = table_number("users");
  EXPECT_EQ(users, 0xfb77df25f066c2e5u);
  EXPECT_EQ(row_hash(users, 0), 0x8e7f510a0f665a31u);
  EXPECT_EQ(row_hash(users, -1), 0x6891c8538d77e301u);
  struct Known {
    int64_t row;
    std::array<int64_t, 4> on;  // of 1, 2, 3 and 64 servers
  };
  for (const Known& known : {Known{0, {0, 1, 1, 35}}, Known{1, {0, 0, 0, 6}}, Known{2, {0, 0, 1, 27}},
                             Known{-1, {0, 0, 1, 26}}, Known{10'000'000, {0, 0, 1, 30}}}) {
    const uint64_t hash = row_hash(users, known.row);
    EXPECT_EQ((std::array{server_of(hash, 1), server_of(hash, 2), server_of(hash, 3), server_of(hash, 64)}), known.on);
  }
}

TEST(Rows, AreSpreadEvenlyOverServers) {
  for (const int64_t servers : {2, 3, 7, 64}) {
    std::vector<int64_t> on(static_cast<std::size_t>(servers), 0);
    constexpr int64_t kRows = 100'000;
    for (int64_t row = 0; row < kRows; ++row) ++on[static_cast<std::size_t>(server_of(row_hash(1, row), servers))];
    // Within 2 % for the 12 bits, and six standard deviations.
    const double expected = double{kRows} / static_cast<double>(servers);
    for (const int64_t count : on)
      EXPECT_NEAR(static_cast<double>(count), expected, expected * 0.02 + 6 * std::sqrt(expected));
  }
}

TEST(TableOptions, AreChecked) {
  const auto refused = [](EmbeddingOptions options, std::string_view value) {
    expect_error<UsageError>([&] { check(options); }, "LS-OPTION", {value});
  };
  check(EmbeddingOptions{.name = "t", .dim = 1});
  refused({.dim = 1}, ".name");
  refused({.name = "a/b", .dim = 1}, "a/b");
  refused({.name = "t"}, ".dim = 0");
  refused({.name = "t", .rows = -1, .dim = 1}, ".rows = -1");
  refused({.name = "t", .dim = 1, .admit_after = -2}, ".admit_after = -2");
  refused({.name = "t", .dim = 1, .evict_after = -3}, ".evict_after = -3");
  refused({.name = "t", .dim = 1, .limit_bytes = -4}, ".limit_bytes = -4");
  refused({.name = "t", .dim = 1, .dtype = c10::kLong}, ".dtype = Long");
  refused({.name = "t", .dim = 1, .initial = RowInitial::uniform(2, 1)}, ".initial");
  refused({.name = "t", .dim = 1, .initial = RowInitial::normal(0, -1)}, ".initial");
  refused({.name = "t", .dim = 1, .initial = std::nan("")}, ".initial");
  refused({.name = "t", .dim = 1, .initial = RowInitial::Function()}, "function");
}

}  // namespace
}  // namespace lockstep::internal
