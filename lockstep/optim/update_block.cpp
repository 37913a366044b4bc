// Chooses among the update loops that were compiled for several sets of vector instructions.
#include "lockstep/optim/update_block.h"

#include "lockstep/core/simd.h"

namespace lockstep::internal {

#define LOCKSTEP_DECLARE(set)                \
  namespace set {                            \
  template <class T>                         \
  UpdateBlock update_block(UpdateKind kind); \
  template <class T>                         \
  void measure_block(BlockUpdate& block);    \
  }
LOCKSTEP_DECLARE(plain)
LOCKSTEP_DECLARE(avx2)
LOCKSTEP_DECLARE(avx2_vaes)
LOCKSTEP_DECLARE(avx512)
#undef LOCKSTEP_DECLARE

template <class T>
UpdateBlock update_block(UpdateKind kind) {
  switch (simd()) {
#if defined(LOCKSTEP_WIDE_SIMD)
    case Simd::kAvx512: return avx512::update_block<T>(kind);
    case Simd::kAvx2Vaes: return avx2_vaes::update_block<T>(kind);
    case Simd::kAvx2: return avx2::update_block<T>(kind);
#endif
    default: return plain::update_block<T>(kind);
  }
}

template <class T>
MeasureBlock measure_block() {
  switch (simd()) {
#if defined(LOCKSTEP_WIDE_SIMD)
    case Simd::kAvx512: return &avx512::measure_block<T>;
    case Simd::kAvx2Vaes: return &avx2_vaes::measure_block<T>;
    case Simd::kAvx2: return &avx2::measure_block<T>;
#endif
    default: return &plain::measure_block<T>;
  }
}

template UpdateBlock update_block<float>(UpdateKind);
template UpdateBlock update_block<double>(UpdateKind);
template MeasureBlock measure_block<float>();
template MeasureBlock measure_block<double>();

}  // namespace lockstep::internal
