// Chooses among the products of few_rows_product.inc, which were compiled for several sets of vector instructions.
#include "lockstep/linear/few_rows_product.h"

#include <algorithm>

#include "lockstep/core/simd.h"
#include "lockstep/linear/few_rows_tiles.h"

namespace lockstep::internal {

#if defined(LOCKSTEP_WIDE_SIMD)
namespace avx2_fma {
void few_rows_forward(const FewRowsWork& work);
void few_rows_input_gradient(const FewRowsWork& work);
}  // namespace avx2_fma
namespace avx512 {
void few_rows_forward(const FewRowsWork& work);
void few_rows_input_gradient(const FewRowsWork& work);
}  // namespace avx512
#endif

const FewRowsProducts* few_rows_products() {
#if defined(LOCKSTEP_WIDE_SIMD)
  static constexpr FewRowsProducts kAvx2 = {&avx2_fma::few_rows_forward, &avx2_fma::few_rows_input_gradient};
  static constexpr FewRowsProducts kAvx512 = {&avx512::few_rows_forward, &avx512::few_rows_input_gradient};
  if (simd() == Simd::kAvx512) return &kAvx512;
  if (simd() >= Simd::kAvx2 && __builtin_cpu_supports("fma")) return &kAvx2;
#endif
  return nullptr;
}

int64_t few_rows_scratch(int64_t samples, int64_t rows, int64_t columns) {
  const int64_t lanes = (samples + kMostLanes - 1) / kMostLanes * kMostLanes;
  const int64_t forward = (columns + kStripRows) * lanes;
  const int64_t input_gradient = (rows + 2 * kPanelColumns) * samples;
  return std::max(forward, input_gradient) + kMostLanes;  // with room to begin at a cache line
}

}  // namespace lockstep::internal
