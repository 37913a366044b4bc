// Chooses among the products of few_samples_product.inc, which were compiled for several sets of vector instructions.
#include "lockstep/linear/few_samples_product.h"

#include <algorithm>

#include "lockstep/core/loops/simd.h"
#include "lockstep/linear/few_samples_tiles.h"

namespace lockstep::internal::inline linear {

#if defined(LOCKSTEP_WIDE_SIMD)
namespace avx2_fma {
void few_samples_forward(const FewSamplesWork& work);
void few_samples_input_gradient(const FewSamplesWork& work);
}  // namespace avx2_fma
namespace avx512 {
void few_samples_forward(const FewSamplesWork& work);
void few_samples_input_gradient(const FewSamplesWork& work);
}  // namespace avx512

namespace {

/// In chains, a register of AVX-512 would be at most half full of so few samples. Half as wide ones multiply as many of
/// them, and some processors (Zen 4) multiply two of these in the time of one wide one.
void forward_avx512(const FewSamplesWork& work) {
  const bool half_full = work.order != SumOrder::kInterleavedChains && work.samples <= kWidestVector / 2;
  (half_full ? avx2_fma::few_samples_forward : avx512::few_samples_forward)(work);
}

}  // namespace
#elif defined(LOCKSTEP_NEON)
namespace neon {
void few_samples_forward(const FewSamplesWork& work);
void few_samples_input_gradient(const FewSamplesWork& work);
}  // namespace neon
#endif

const FewSamplesProducts* few_samples_products() {
#if defined(LOCKSTEP_WIDE_SIMD)
  static constexpr FewSamplesProducts kAvx2 = {&avx2_fma::few_samples_forward, &avx2_fma::few_samples_input_gradient};
  static constexpr FewSamplesProducts kAvx512 = {&forward_avx512, &avx512::few_samples_input_gradient};
  if (simd() == Simd::kAvx512) return &kAvx512;
  if (simd() >= Simd::kAvx2 && __builtin_cpu_supports("fma")) return &kAvx2;
#elif defined(LOCKSTEP_NEON)
  static constexpr FewSamplesProducts kNeon = {&neon::few_samples_forward, &neon::few_samples_input_gradient};
  if (simd() == Simd::kNeon) return &kNeon;
#endif
  return nullptr;
}

int64_t few_samples_scratch(int64_t samples, int64_t rows, int64_t columns) {
  const int64_t packed_samples = (samples + kWidestVector - 1) / kWidestVector * kWidestVector;
  const int64_t forward = (columns + std::max(kStripRows, kWidestVector)) * packed_samples;
  const int64_t input_gradient = (rows + 2 * kPanelColumns) * samples;
  return std::max(forward, input_gradient) + kWidestVector;  // with room to begin at a cache line
}

}  // namespace lockstep::internal::linear
