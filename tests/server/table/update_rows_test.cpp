// The loops over rows give the bits of the fused update's loops, on every set of vector instructions.
#include "lockstep/server/table/loops/update_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "lockstep/core/loops/simd.h"
#include "lockstep/optim/loops/clip.h"

namespace lockstep::internal {

// Those that were compiled in; chosen by hand here.
#define LOCKSTEP_DECLARE(set)              \
  namespace server::set {                  \
  template <class T>                       \
  UpdateRows update_rows(UpdateKind kind); \
  }
LOCKSTEP_DECLARE(plain)
#if defined(__x86_64__)
LOCKSTEP_DECLARE(avx2)
LOCKSTEP_DECLARE(avx2_vaes)
LOCKSTEP_DECLARE(avx512)
#endif
#undef LOCKSTEP_DECLARE

namespace {

struct Kind {
  UpdateKind kind;
  int slots;
};
constexpr Kind kEachKind[] = {
    {UpdateKind::kSgd, 0},
    {UpdateKind::kSgdMomentum, 1},
    {UpdateKind::kSgdNesterov, 1},
    {UpdateKind::kAdam, 2},
    {UpdateKind::kAdamW, 2},
    {UpdateKind::kAdamAmsgrad, 3},
    {UpdateKind::kAdamWAmsgrad, 3},
    {UpdateKind::kRmsprop, 1},
    {UpdateKind::kAdagrad, 1},
    {UpdateKind::kRmspropMomentum, 2},
    {UpdateKind::kRmspropCentered, 2},
    {UpdateKind::kRmspropCenteredMomentum, 3},
};

template <class T>
std::vector<UpdateRows> loops_here(UpdateKind kind) {
  std::vector<UpdateRows> loops{server::plain::update_rows<T>(kind)};
#if defined(__x86_64__)
  const Simd most = simd_setting("");
  if (most >= Simd::kAvx2) loops.push_back(server::avx2::update_rows<T>(kind));
  if (most >= Simd::kAvx2Vaes) loops.push_back(server::avx2_vaes::update_rows<T>(kind));
  if (most >= Simd::kAvx512) loops.push_back(server::avx512::update_rows<T>(kind));
#endif
  return loops;
}

Coefficients numbers_of(int64_t update) {
  Coefficients c;
  c.learning_rate = 0.1 / static_cast<double>(update);
  c.weight_decay = 0.01;
  c.keep_first = 0.9;
  c.take_first = 0.1;
  c.keep_second = 0.99;
  c.take_second = 0.01;
  c.momentum = 0.8;
  c.root_scale = 1 + 1 / static_cast<double>(update);
  c.epsilon = 1e-8;
  return c;
}

template <class T>
void expect_the_fused_updates_bits(Kind kind, int64_t width, const Clip& clip) {
  constexpr std::size_t kRows = 7;
  std::mt19937 random(static_cast<unsigned>(width));
  std::normal_distribution<double> normal;
  const auto row_size = static_cast<std::size_t>((1 + kind.slots) * width);
  std::vector<std::vector<T>> rows(kRows, std::vector<T>(row_size + 1, T{-9}));
  std::vector<std::vector<T>> gradients(kRows, std::vector<T>(static_cast<std::size_t>(width)));
  std::vector<Coefficients> numbers;
  for (std::size_t k = 0; k < kRows; ++k) {
    for (std::size_t i = 0; i < row_size; ++i) rows[k][i] = static_cast<T>(std::abs(normal(random)));
    for (T& x : gradients[k]) x = static_cast<T>(normal(random));
    numbers.push_back(numbers_of(static_cast<int64_t>(1 + k)));
  }
  gradients[2][0] = std::numeric_limits<T>::infinity();
  if (width > 1) gradients[2][1] = std::numeric_limits<T>::quiet_NaN();

  auto expected = rows;
  for (std::size_t k = 0; k < kRows; ++k) {
    std::vector<T> clipped(static_cast<std::size_t>(width));
    for (int64_t at = 0; at < width; at += 64) {
      const int64_t count = std::min<int64_t>(64, width - at);
      BlockUpdate block{};
      block.gradient = gradients[k].data() + at;
      block.clip = clip.factor;
      if (clip.limits()) {
        write_clipped<T>({gradients[k].data() + at, nullptr}, count, clip, clipped.data() + at);
        block.gradient = clipped.data() + at;
        block.clip = 1;
      }
      block.weights = block.new_weights = expected[k].data() + at;
      for (int s = 0; s < kind.slots; ++s)
        block.slots[s] = block.new_slots[s] = expected[k].data() + (s + 1) * width + at;
      block.count = count;
      block.coefficients = &numbers[k / 3];
      update_block<T>(kind.kind)(block);
    }
  }
  for (const UpdateRows loop : loops_here<T>(kind.kind)) {
    auto got = rows;
    std::vector<char*> starts;
    std::vector<const void*> inputs;
    std::vector<const Coefficients*> coefficients;
    for (std::size_t k = 0; k < kRows; ++k) {
      starts.push_back(reinterpret_cast<char*>(got[k].data()));
      inputs.push_back(gradients[k].data());
      coefficients.push_back(&numbers[k / 3]);
    }
    loop({.rows = starts.data(),
          .gradients = inputs.data(),
          .coefficients = coefficients.data(),
          .count = kRows,
          .width = width,
          .factor = clip.factor,
          .most = clip.most});
    for (std::size_t k = 0; k < kRows; ++k) {
      EXPECT_EQ(std::memcmp(got[k].data(), expected[k].data(), (row_size + 1) * sizeof(T)), 0)
          << "kind " << static_cast<int>(kind.kind) << ", width " << width << ", row " << k;
    }
  }
}

TEST(RowUpdates, HaveTheFusedUpdatesBitsInAnyWidth) {
  for (const Kind& kind : kEachKind) {
    for (const int64_t width : {1, 7, 8, 15, 16, 17, 32, 33, 100}) {
      expect_the_fused_updates_bits<float>(kind, width, {});
      expect_the_fused_updates_bits<double>(kind, width, {});
      expect_the_fused_updates_bits<float>(kind, width, {.factor = 0.3});
      expect_the_fused_updates_bits<double>(kind, width, {.factor = 0.3, .most = 0.2});
      expect_the_fused_updates_bits<float>(kind, width, {.factor = 2, .most = 0.7});
    }
  }
}

}  // namespace
}  // namespace lockstep::internal
