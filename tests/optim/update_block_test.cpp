// The inner loops: all sets of vector instructions give the same bits, and cutting a row anywhere changes none.
#include "lockstep/optim/loops/update_block.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "lockstep/core/loops/checksum.h"
#include "lockstep/core/loops/simd.h"

namespace lockstep::internal {

// Those that were compiled in; chosen by hand here.
#define LOCKSTEP_DECLARE(set)                           \
  namespace optim::set {                                \
  template <class T>                                    \
  UpdateBlock update_block(UpdateKind kind);            \
  template <class T>                                    \
  void measure_block(BlockUpdate& block);               \
  }                                                     \
  namespace core::set {                                 \
  uint64_t checksum(const void* memory, int64_t bytes); \
  }
LOCKSTEP_DECLARE(plain)
#if defined(__x86_64__)
LOCKSTEP_DECLARE(avx2)
LOCKSTEP_DECLARE(avx2_vaes)
LOCKSTEP_DECLARE(avx512)
#endif
#undef LOCKSTEP_DECLARE

namespace {

constexpr UpdateKind kKinds[] = {
    UpdateKind::kSgd,
    UpdateKind::kSgdMomentum,
    UpdateKind::kSgdNesterov,
    UpdateKind::kAdam,
    UpdateKind::kAdamW,
    UpdateKind::kAdamAmsgrad,
    UpdateKind::kAdamWAmsgrad,
    UpdateKind::kRmsprop,
    UpdateKind::kAdagrad,
    UpdateKind::kRmspropMomentum,
    UpdateKind::kRmspropCentered,
    UpdateKind::kRmspropCenteredMomentum,
};

template <class T>
struct Memory {
  std::vector<T> weights, slots[kMaxSlots], left, right;
  explicit Memory(int64_t count, unsigned seed = 1) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal(0, 1);
    for (auto* row : {&weights, &left, &right}) {
      row->resize(count);
      for (T& value : *row) value = static_cast<T>(normal(random));
    }
    for (auto& slot : slots) {
      slot.resize(count);
      for (T& value : slot) value = static_cast<T>(std::abs(normal(random)));
    }
    // RMSprop's variance must stay positive: keep the mean gradient small.
    for (T& value : slots[1]) value *= T(0.1);
  }
  BlockUpdate block(int64_t offset, int64_t count, bool two, const Coefficients& coefficients) {
    BlockUpdate work{};
    work.weights = work.new_weights = weights.data() + offset;
    for (int s = 0; s < kMaxSlots; ++s) work.slots[s] = work.new_slots[s] = slots[s].data() + offset;
    work.gradient = left.data() + offset;
    work.right_gradient = two ? right.data() + offset : nullptr;
    work.count = count;
    work.coefficients = &coefficients;
    work.clip = 0.7;
    return work;
  }
  /// The same bits, NaN included.
  bool operator==(const Memory& other) const {
    const auto same = [](const std::vector<T>& a, const std::vector<T>& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
    };
    return same(weights, other.weights) && same(slots[0], other.slots[0]) && same(slots[1], other.slots[1]) &&
           same(slots[2], other.slots[2]);
  }
};

const Coefficients kSome{0.01, 0.003, 0.9, 0.1, 0.99, 0.01, 0.8, 1.3, 1e-8};  // blocks keep its address

struct Choice {
  const char* name;
  Simd needs;
  UpdateBlock (*f32)(UpdateKind);
  UpdateBlock (*f64)(UpdateKind);
  uint64_t (*sum)(const void*, int64_t);
  MeasureBlock measure32;
  MeasureBlock measure64;
};

#define LOCKSTEP_CHOICE(name, set, simd)                                                                         \
  {                                                                                                              \
    name, Simd::simd, &optim::set::update_block<float>, &optim::set::update_block<double>, &core::set::checksum, \
        &optim::set::measure_block<float>, &optim::set::measure_block<double>                                    \
  }
const Choice kPlain LOCKSTEP_CHOICE("plain", plain, kPlain);
const std::vector<Choice> kOthers {
#if defined(__x86_64__)
  LOCKSTEP_CHOICE("avx2", avx2, kAvx2), LOCKSTEP_CHOICE("avx2_vaes", avx2_vaes, kAvx2Vaes),
      LOCKSTEP_CHOICE("avx512", avx512, kAvx512),
#endif
};
#undef LOCKSTEP_CHOICE

/// Those that this processor has.
std::vector<Choice> choices() {
  std::vector<Choice> all{kPlain};
  for (const Choice& choice : kOthers) {
    if (choice.needs <= simd()) all.push_back(choice);
  }
  return all;
}

template <class T>
UpdateBlock loop_of(const Choice& choice, UpdateKind kind) {
  if constexpr (std::is_same_v<T, float>)
    return choice.f32(kind);
  else
    return choice.f64(kind);
}

template <class T>
void expect_same_bits(const Choice& choice) {
  for (const UpdateKind kind : kKinds) {
    for (const int64_t count : {1, 5, 16, 17, 63, 1024}) {
      for (const bool two : {false, true}) {
        Memory<T> expected(count);
        Memory<T> memory(count);
        auto first = expected.block(0, count, two, kSome);
        auto second = memory.block(0, count, two, kSome);
        loop_of<T>(kPlain, kind)(first);
        loop_of<T>(choice, kind)(second);
        ASSERT_TRUE(memory == expected) << choice.name << " kind " << static_cast<int>(kind) << " count " << count;
        ASSERT_EQ(first.sum_of_squares, second.sum_of_squares);
      }
    }
  }
}

TEST(UpdateBlock, AllSetsOfInstructionsGiveTheSameBits) {
  int tried = 0;
  for (const Choice& choice : kOthers) {
    if (choice.needs > simd()) {
      std::printf("not tried on this processor: %s\n", choice.name);
      continue;
    }
    expect_same_bits<float>(choice);
    expect_same_bits<double>(choice);
    ++tried;
  }
  if (tried == 0) GTEST_SKIP() << "this processor has plain loops only";
}

TEST(UpdateBlock, ChecksumsAreThoseOfTheMemoryBeforeAndAfter) {
  for (const Choice& choice : choices()) {
    for (const UpdateKind kind : kKinds) {
      for (const int64_t count : {1, 15, 16, 100, 2048}) {
        Memory<float> memory(count);
        const uint64_t before = choice.sum(memory.weights.data(), count * 4);
        auto work = memory.block(0, count, true, kSome);
        choice.f32(kind)(work);
        EXPECT_EQ(work.checksum_read, before) << choice.name;
        EXPECT_EQ(work.checksum_written, choice.sum(memory.weights.data(), count * 4)) << choice.name;
      }
    }
  }
}

TEST(UpdateBlock, ACutChangesNoBitOfWeightsAndSlots) {
  for (const UpdateKind kind : kKinds) {
    Memory<float> whole(300);
    auto work = whole.block(0, 300, true, kSome);
    update_block<float>(kind)(work);
    for (const int64_t cut : {1, 16, 77, 299}) {
      Memory<float> parts(300);
      auto first = parts.block(0, cut, true, kSome);
      auto second = parts.block(cut, 300 - cut, true, kSome);
      update_block<float>(kind)(first);
      update_block<float>(kind)(second);
      ASSERT_TRUE(parts == whole) << "kind " << static_cast<int>(kind) << " cut at " << cut;
    }
  }
}

TEST(UpdateBlock, WritesTheSameBitsElsewhereAndLeavesTheOldOnes) {
  for (const UpdateKind kind : kKinds) {
    for (const int64_t count : {1, 16, 77, 300}) {
      const Memory<float> old(count);
      Memory<float> in_place(count);
      auto expected = in_place.block(0, count, true, kSome);
      update_block<float>(kind)(expected);
      Memory<float> read(count);
      Memory<float> written(count);
      auto work = read.block(0, count, true, kSome);
      work.new_weights = written.weights.data();
      for (int s = 0; s < kMaxSlots; ++s) work.new_slots[s] = written.slots[s].data();
      update_block<float>(kind)(work);
      EXPECT_TRUE(read == old) << "kind " << static_cast<int>(kind);
      EXPECT_TRUE(written == in_place) << "kind " << static_cast<int>(kind);
      EXPECT_EQ(work.checksum_read, expected.checksum_read);
      EXPECT_EQ(work.checksum_written, expected.checksum_written);
    }
  }
}

TEST(MeasureBlock, GivesTheNormThatTheUpdateGives) {
  for (const int64_t count : {1, 16, 100, 2048}) {
    for (const bool two : {false, true}) {
      Memory<float> memory(count);
      auto measured = memory.block(0, count, two, kSome);
      measure_block<float>()(measured);
      auto updated = memory.block(0, count, two, kSome);
      update_block<float>(UpdateKind::kAdamW)(updated);
      EXPECT_EQ(measured.sum_of_squares, updated.sum_of_squares);
    }
  }
}

/// The sum of squares in the order that is promised, written out.
template <class T>
double sum_of_squares_of(const T* left, const T* right, int64_t count) {
  double sums[kSquareColumns];
  for (int64_t column = 0; column < kSquareColumns; ++column) {
    T sum = 0;
    for (int64_t i = column; i < count; i += kSquareColumns) {
      const T x = right ? left[i] + right[i] : left[i];
      const T square = x * x;
      sum = sum + square;
    }
    sums[column] = static_cast<double>(sum);
  }
  for (int half = kSquareColumns / 2; half > 0; half /= 2) {
    for (int column = 0; column < half; ++column) sums[column] = sums[column] + sums[column + half];
  }
  return sums[0];
}

template <class T>
void expect_promised_order(const Choice& choice, const Memory<T>& from, int64_t count) {
  const MeasureBlock measure = std::is_same_v<T, float> ? choice.measure32 : choice.measure64;
  for (const bool two : {false, true}) {
    Memory<T> memory = from;
    const double expected = sum_of_squares_of(memory.left.data(), two ? memory.right.data() : nullptr, count);
    auto work = memory.block(0, count, two, kSome);
    const auto expect = [&](const char* what) {
      const double found = work.sum_of_squares;
      EXPECT_TRUE(std::isnan(expected) ? std::isnan(found) : found == expected)
          << choice.name << " " << what << ", count " << count << ", two " << two << ": " << found << ", " << expected;
      work.sum_of_squares = -1;
    };
    measure(work);
    expect("measures");
    loop_of<T>(choice, UpdateKind::kSgd)(work);
    expect("updates by SGD");
    loop_of<T>(choice, UpdateKind::kAdamW)(work);
    expect("updates by AdamW");
  }
}

constexpr int64_t kCounts[] = {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 200, 1023, 1024, 1025, 2047, 2048, 2049};

TEST(SumOfSquares, HasThePromisedOrderInAllSetsOfInstructions) {
  for (const Choice& choice : choices()) {
    for (const int64_t count : kCounts) {
      expect_promised_order(choice, Memory<float>(count), count);
      expect_promised_order(choice, Memory<double>(count), count);
    }
  }
}

TEST(SumOfSquares, HasNoFusedMultiplyAdd) {
  // The square of x is 1 + 2^-11 + 2^-24. Rounded on its own it loses its last term, which makes the sum one bit
  // larger.
  const float x = 1.0f + 0x1p-12f;
  Memory<float> memory(2 * kSquareColumns);
  for (float& value : memory.left) value = 0;
  memory.left[3] = 0x1p-12f;
  memory.left[3 + kSquareColumns] = x;
  const auto square = static_cast<float>(static_cast<double>(x) * x);
  const auto once = static_cast<float>(0x1p-24 + static_cast<double>(x) * x);
  const float twice = 0x1p-24f + square;
  ASSERT_NE(once, twice);
  for (const Choice& choice : choices()) {
    auto work = memory.block(0, 2 * kSquareColumns, false, kSome);
    choice.measure32(work);
    EXPECT_EQ(work.sum_of_squares, static_cast<double>(twice)) << choice.name;
  }
}

TEST(SumOfSquares, IsNotFiniteWhereASquareIsNot) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Choice& choice : choices()) {
    for (const int64_t count : {1, 64, 100, 2048}) {
      for (const int64_t place : {int64_t{0}, count / 2, count - 1}) {
        for (const float value : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity, 1e30f, -1e30f}) {
          Memory<float> memory(count);
          memory.left[static_cast<std::size_t>(place)] = value;
          expect_promised_order(choice, memory, count);
          auto work = memory.block(0, count, false, kSome);
          choice.measure32(work);
          EXPECT_EQ(std::isnan(work.sum_of_squares), std::isnan(value)) << choice.name;
          EXPECT_FALSE(std::isfinite(work.sum_of_squares)) << choice.name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::internal
