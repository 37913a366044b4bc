// Chooses among the sum's loops, which were compiled for several sets of vector instructions.
#include "lockstep/reduce/tree_sum.h"

#include "lockstep/core/simd.h"

namespace lockstep::internal {

#define LOCKSTEP_DECLARE(set)                                                                             \
  namespace set {                                                                                         \
  template <class T>                                                                                      \
  const T* tree_sum(const T* const* inputs, int64_t replicas, int64_t offset, int64_t count, T* scratch); \
  template <class T>                                                                                      \
  void stream_tree_sum(const T* const* inputs, int64_t replicas, int64_t begin, int64_t end, bool mean,   \
                       T* const* outputs);                                                                \
  }
LOCKSTEP_DECLARE(plain)
LOCKSTEP_DECLARE(avx2)
LOCKSTEP_DECLARE(avx2_vaes)
LOCKSTEP_DECLARE(avx512)
#undef LOCKSTEP_DECLARE

template <class T>
TreeSum<T> tree_sum() {
  switch (simd()) {
#if defined(LOCKSTEP_WIDE_SIMD)
    case Simd::kAvx512: return &avx512::tree_sum<T>;
    case Simd::kAvx2Vaes: return &avx2_vaes::tree_sum<T>;
    case Simd::kAvx2: return &avx2::tree_sum<T>;
#endif
    default: return &plain::tree_sum<T>;
  }
}

template <class T>
StreamTreeSum<T> stream_tree_sum() {
  switch (simd()) {
#if defined(LOCKSTEP_WIDE_SIMD)
    case Simd::kAvx512: return &avx512::stream_tree_sum<T>;
    case Simd::kAvx2Vaes: return &avx2_vaes::stream_tree_sum<T>;
    case Simd::kAvx2: return &avx2::stream_tree_sum<T>;
#endif
    default: return &plain::stream_tree_sum<T>;
  }
}

template TreeSum<float> tree_sum<float>();
template TreeSum<double> tree_sum<double>();
template TreeSum<int64_t> tree_sum<int64_t>();
template StreamTreeSum<float> stream_tree_sum<float>();
template StreamTreeSum<double> stream_tree_sum<double>();

}  // namespace lockstep::internal
