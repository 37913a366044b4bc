// The library's own loops give on every processor the bits that are written down here. LibTorch's products have no part
// in them.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/core/denormals.h"
#include "lockstep/core/digest.h"
#include "lockstep/linear/few_samples_product.h"
#include "lockstep/optim/loops/update_block.h"
#include "lockstep/reduce/loops/bfloat16.h"
#include "lockstep/reduce/loops/outer_product.h"
#include "lockstep/reduce/loops/tree_sum.h"

namespace lockstep::internal {
namespace {

/// The calling thread treats denormal numbers as said, for the length of a scope.
class DenormalsScope {
 public:
  explicit DenormalsScope(Denormals denormals) : before_(floating_point_modes()) {
    set_floating_point_modes(with_denormals(before_, denormals));
  }
  ~DenormalsScope() { set_floating_point_modes(before_); }
  DenormalsScope(const DenormalsScope&) = delete;
  DenormalsScope& operator=(const DenormalsScope&) = delete;

 private:
  const uint32_t before_;
};

/// Numbers that no library of mathematics has a part in, so that they are the same everywhere.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : seed_(seed) {}
  uint64_t bits() { return Digest(seed_).with(++drawn_).value(); }
  /// From -1 to 1, of many sizes; one in 16 is denormal.
  template <class T>
  T either() {
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    constexpr int kMantissa = std::numeric_limits<T>::digits - 1;
    const auto mantissa = static_cast<Bits>(bits() % (uint64_t{1} << kMantissa));
    const auto sign = static_cast<Bits>(bits() % 2 << (8 * sizeof(T) - 1));
    const uint64_t size = bits() % 16;
    const auto one = std::bit_cast<Bits>(T(1));
    const auto exponent = size == 0 ? Bits{0} : static_cast<Bits>(one - (size % 8 + 1) * (Bits{1} << kMantissa));
    return std::bit_cast<T>(sign | exponent | mantissa);
  }
  /// From 0.5 to 1.
  template <class T>
  T large() {
    return T(0.5) + T(0.5) * static_cast<T>(bits() % (1 << 23)) / T(1 << 23);
  }
  template <class T>
  std::vector<T> many(int64_t count) {
    std::vector<T> all(static_cast<std::size_t>(count));
    for (T& one : all) one = either<T>();
    return all;
  }

 private:
  const uint64_t seed_;
  uint64_t drawn_ = 0;
};

template <class T>
Digest with_bits(const Digest& digest, const std::vector<T>& values) {
  return digest.with(std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
}

constexpr int64_t kLengths[] = {1, 5, 16, 17, 63, 64, 100, 1024, 2048};

template <class T>
Digest bits_of_updates(UpdateKind kind) {
  const Coefficients some{0.01, 0.003, 0.9, 0.1, 0.99, 0.01, 0.8, 1.3, 1e-8};
  Digest digest;
  for (const int64_t count : kLengths) {
    for (const bool two : {false, true}) {
      Numbers draws(static_cast<uint64_t>(count));
      auto weights = draws.many<T>(count);
      const auto left = draws.many<T>(count);
      const auto right = draws.many<T>(count);
      std::vector<T> slots[kMaxSlots];
      // The first slot may be an average of squares, and the second one of gradients: their difference stays positive.
      for (int s = 0; s < kMaxSlots; ++s) {
        const T most = s == 1 ? T(0.0625) : T(1);
        for (int64_t i = 0; i < count; ++i) slots[s].push_back(i % 3 == 0 ? T(0) : draws.large<T>() * most);
      }
      BlockUpdate work{};
      work.weights = work.new_weights = weights.data();
      for (int s = 0; s < kMaxSlots; ++s) work.slots[s] = work.new_slots[s] = slots[s].data();
      work.gradient = left.data();
      work.right_gradient = two ? right.data() : nullptr;
      work.count = count;
      work.coefficients = &some;
      work.clip = 0.7;
      update_block<T>(kind)(work);
      digest = with_bits(digest, weights).with(work.sum_of_squares);
      for (const auto& slot : slots) digest = with_bits(digest, slot);
      measure_block<T>()(work);
      digest = digest.with(work.sum_of_squares);
    }
  }
  return digest;
}

template <class T>
Digest bits_of_sums() {
  Digest digest;
  for (const int64_t replicas : {1, 2, 3, 5, 7, 8, 13}) {
    Numbers draws(static_cast<uint64_t>(replicas));
    std::vector<std::vector<T>> values;
    std::vector<const T*> inputs;
    for (int64_t r = 0; r < replicas; ++r) {
      values.emplace_back();
      for (int64_t i = 0; i < kSumBlock; ++i) {
        if constexpr (std::is_integral_v<T>) {
          values.back().push_back(static_cast<T>(draws.bits() >> 8));
        } else {
          values.back().push_back(draws.either<T>());
        }
      }
      inputs.push_back(values.back().data());
    }
    for (const bool one_is_absent : {false, true}) {
      if (one_is_absent) inputs[static_cast<std::size_t>(replicas / 2)] = nullptr;
      std::vector<T> scratch(static_cast<std::size_t>(scratch_rows(replicas) * kSumBlock));
      const T* const sum = tree_sum<T>()(inputs.data(), replicas, 3, kSumBlock - 3, scratch.data());
      if (sum) digest = with_bits(digest, std::vector<T>(sum, sum + kSumBlock - 3));
    }
  }
  return digest;
}

/// Of a mean that goes past the caches.
template <class T>
Digest bits_of_streamed_means() {
  Digest digest;
  for (const int64_t replicas : {1, 2, 3, 5, 8}) {
    Numbers draws(static_cast<uint64_t>(replicas));
    std::vector<std::vector<T>> values;
    std::vector<const T*> inputs;
    std::vector<T*> outputs;
    for (int64_t r = 0; r < replicas; ++r) values.push_back(draws.many<T>(1000));
    std::vector<T> memory(static_cast<std::size_t>(replicas) * 1024 + 64);
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    T* const first = memory.data() + (kStreamAlignment - address % kStreamAlignment) % kStreamAlignment / sizeof(T);
    for (int64_t r = 0; r < replicas; ++r) {
      inputs.push_back(values[static_cast<std::size_t>(r)].data());
      outputs.push_back(first + r * 1024);
    }
    stream_tree_sum<T>()(inputs.data(), replicas, 0, 1000, true, outputs.data());
    for (T* const output : outputs) digest = with_bits(digest, std::vector<T>(output, output + 1000));
  }
  return digest;
}

Digest bits_of_bfloat16() {
  Numbers draws(1);
  const auto values = draws.many<float>(4096);
  std::vector<Bfloat16> rounded(values.size());
  to_bfloat16(values.data(), 4096, rounded.data());
  return with_bits(Digest(), rounded);
}

Digest bits_of_outer_products() {
  Digest digest;
  for (const int64_t samples : {1, 2, 7}) {
    for (const ZeroSums zero_sums : {ZeroSums::kPositive, ZeroSums::kSigned}) {
      constexpr int64_t kRows = 10;
      constexpr int64_t kColumns = 100;
      Numbers draws(static_cast<uint64_t>(samples));
      const auto left = draws.many<float>(12 * samples);
      const auto right = draws.many<float>(144 * samples);
      std::vector<float> out(kRows * kColumns, 1.0f);
      OuterProductWork work{left.data(), right.data(), samples,      kColumns, 0,
                            kRows,       out.data(),   samples == 7, zero_sums};
      outer_product()(work);
      digest = with_bits(digest, out);
    }
  }
  return digest;
}

Digest bits_of_few_samples(SumOrder order) {
  const FewSamplesProducts& products = *few_samples_products();
  Digest digest;
  for (const int64_t samples : {1, 3, 8, 17}) {
    constexpr int64_t kRows = 50;
    constexpr int64_t kColumns = 1100;
    Numbers draws(static_cast<uint64_t>(samples));
    const auto weight = draws.many<float>(kRows * kColumns);
    const auto bias = draws.many<float>(kRows);
    std::vector<float> scratch(static_cast<std::size_t>(few_samples_scratch(samples, kRows, kColumns)));
    for (const bool forward : {true, false}) {
      if (!forward && order == SumOrder::kInterleavedChains) continue;
      const auto input = draws.many<float>(samples * (forward ? kColumns : kRows));
      std::vector<float> out(static_cast<std::size_t>(samples * (forward ? kRows : kColumns)));
      FewSamplesWork work{weight.data(), kRows,      kColumns,       input.data(), samples,
                          bias.data(),   out.data(), scratch.data(), order};
      (forward ? products.forward : products.input_gradient)(work);
      digest = with_bits(digest, out);
    }
  }
  return digest;
}

/// What a loop gives where denormal numbers are kept, and where they are flushed.
struct Known {
  uint64_t kept;
  uint64_t flushed;
};

template <class Bits>
void expect_known(const std::string& what, const Known& known, const Bits& bits) {
  for (const Denormals denormals : {Denormals::kKeep, Denormals::kFlush}) {
    const DenormalsScope scope(denormals);
    const uint64_t found = bits().value();
    EXPECT_EQ(found, denormals == Denormals::kKeep ? known.kept : known.flushed)
        << what << ": 0x" << std::hex << found << (denormals == Denormals::kKeep ? " kept" : " flushed");
  }
}

TEST(LoopBits, OfUpdatesAreTheSameOnAllProcessors) {
  struct Case {
    UpdateKind kind;
    Known float32;
    Known float64;
  };
  const Case cases[] = {
      {UpdateKind::kSgd, {0xab480b9d5415c7f0, 0x45dfcb1d7b809147}, {0x05cba06ce6470688, 0x8172f9c5e5239902}},
      {UpdateKind::kSgdMomentum, {0x0c5e8efd7d47e695, 0x7b1ceb96ec6e9951}, {0x8267f2a54a0441fb, 0x4bcbf71ddaf38e44}},
      {UpdateKind::kSgdNesterov, {0x4445802d6e97e85d, 0xdc458cfecac70c5c}, {0xa5ffc80ab92ef996, 0x5169a9a65979162b}},
      {UpdateKind::kAdam, {0x4fa84b3178a2b56c, 0x5783a4180da53e50}, {0x7ba5b88fc85b5e11, 0xb5dfd61f3b35438f}},
      {UpdateKind::kAdamAmsgrad, {0x996edee259547b96, 0x658cddfbd1aefee0}, {0x857929cbce275e79, 0x034da5ce25efb736}},
      {UpdateKind::kAdamW, {0x277c07c214cb57f9, 0x87a1f4b44ecb56f3}, {0x64322c337b931816, 0x036cb68559ca89bd}},
      {UpdateKind::kAdamWAmsgrad, {0x94bff989394f7b6a, 0x4d94034840d6e550}, {0x95eef577cb49f47d, 0xd65a8519f6663ff5}},
      {UpdateKind::kRmsprop, {0xcf71e0be383adf7a, 0x241fb8ce761fb21a}, {0x4628711654000025, 0x10355eef0bdb54b4}},
      {UpdateKind::kRmspropMomentum,
       {0x9ff9f32ccda73a5b, 0x80177d20a6de992e},
       {0x261b1839edf901ca, 0xafb0dc7fb092a65c}},
      {UpdateKind::kRmspropCentered,
       {0xfa6bb25ff09132ff, 0xfdfd6665a44a7ee5},
       {0x991d89d8efad6d78, 0x51075c06b7cf0cbc}},
      {UpdateKind::kRmspropCenteredMomentum,
       {0x7b5a9e61cac715a5, 0x20fc1bbdeaddbb1d},
       {0x5fd1d5c3375dba29, 0x3a3fdee27af32c6d}},
      {UpdateKind::kAdagrad, {0x2fc79670a8d5e229, 0x3c57bcb904c8db6f}, {0x4906f6451dd8168f, 0x38fffbd065537d74}},
  };
  for (const Case& one : cases) {
    const std::string kind = std::to_string(static_cast<int>(one.kind));
    expect_known("update " + kind, one.float32, [&] { return bits_of_updates<float>(one.kind); });
    expect_known("update " + kind + " of float64", one.float64, [&] { return bits_of_updates<double>(one.kind); });
  }
}

TEST(LoopBits, OfSumsAreTheSameOnAllProcessors) {
  expect_known("sum of float32", {0xf29afdee0e46af23, 0x7bd036ab2aa76735}, &bits_of_sums<float>);
  expect_known("sum of float64", {0xce3336ae9f6fe7ce, 0x33dfba0a2caa4439}, &bits_of_sums<double>);
  expect_known("sum of int64", {0xf8251bc5c034a1a5, 0xf8251bc5c034a1a5}, &bits_of_sums<int64_t>);
  expect_known("streamed mean of float32", {0xbb99073c2c968b7b, 0x03bc78a4ae2afa68}, &bits_of_streamed_means<float>);
  expect_known("streamed mean of float64", {0xdb8f939410456277, 0x6a97109b2f8f2cd0}, &bits_of_streamed_means<double>);
  expect_known("bfloat16", {0xa476c09f4ee88f05, 0xa476c09f4ee88f05}, &bits_of_bfloat16);
}

TEST(LoopBits, OfProductsAreTheSameOnAllProcessors) {
  if (!outer_product() || !few_samples_products()) {
    GTEST_SKIP() << "this processor, or LOCKSTEP_SIMD, has no fused multiply-add";
  }
  expect_known("outer products", {0xfbe69bca18686694, 0x22c796e82db4565f}, &bits_of_outer_products);
  expect_known("chains of 192", {0x51c1b29491a4090e, 0x51c1b29491a4090e},
               [] { return bits_of_few_samples(SumOrder::kChainsOf192); });
  expect_known("chains of 384", {0x45a4e109239b2368, 0x45a4e109239b2368},
               [] { return bits_of_few_samples(SumOrder::kChainsOf384); });
  expect_known("balanced chains of 384", {0x90e97d6cef135be3, 0x90e97d6cef135be3},
               [] { return bits_of_few_samples(SumOrder::kBalancedChainsOf384); });
  expect_known("interleaved chains", {0x8261d8e992b273cb, 0x8261d8e992b273cb},
               [] { return bits_of_few_samples(SumOrder::kInterleavedChains); });
}

}  // namespace
}  // namespace lockstep::internal
