#include "lockstep/train/step/bfloat16_cost.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>

namespace lockstep::internal::inline train {

namespace {

constexpr int64_t kSize = 256;

/// The fastest of some products, the first of which chooses its kernel.
double seconds_of_product(at::ScalarType type) {
  using Clock = std::chrono::steady_clock;
  const at::Tensor matrix = at::ones({kSize, kSize}, type);
  at::Tensor result = at::empty({kSize, kSize}, type);
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 4; ++i) {
    const auto begin = Clock::now();
    at::mm_out(result, matrix, matrix);
    least = std::min(least, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return least;
}

}  // namespace

bool has_bfloat16_instructions() {
#if defined(__x86_64__) && defined(__GNUC__)
  return __builtin_cpu_supports("avx512bf16");
#else
  return true;
#endif
}

double measured_bfloat16_cost() {
  const at::NoGradGuard no_grad;
  return seconds_of_product(at::kBFloat16) / seconds_of_product(at::kFloat);
}

std::string bfloat16_cost_text() {
  return fmt::format(
      "Precision::kBFloat16: this processor has no instructions for bfloat16; a product of {0} x {0} took {1:.1f} "
      "times as long here as with kFloat32, and a step's products will cost about that",
      kSize, measured_bfloat16_cost());
}

}  // namespace lockstep::internal::train
