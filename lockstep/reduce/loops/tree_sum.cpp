// Chooses among the sum's loops, which were compiled for several sets of vector instructions.
#include "lockstep/reduce/loops/tree_sum.h"

#include "lockstep/core/loops/simd.h"

namespace lockstep::internal::inline reduce {

LOCKSTEP_IN_EACH_SIMD(template <class T> const T* tree_sum(const T* const* inputs, int64_t replicas, int64_t offset,
                                                           int64_t count, T* scratch);
                      template <class T> void stream_tree_sum(const T* const* inputs, int64_t replicas, int64_t begin,
                                                              int64_t end, bool mean, T* const* outputs);)

template <class T>
TreeSum<T> tree_sum() {
  return LOCKSTEP_BY_SIMD(tree_sum<T>);
}

template <class T>
StreamTreeSum<T> stream_tree_sum() {
  return LOCKSTEP_BY_SIMD(stream_tree_sum<T>);
}

template TreeSum<float> tree_sum<float>();
template TreeSum<double> tree_sum<double>();
template TreeSum<int64_t> tree_sum<int64_t>();
template StreamTreeSum<float> stream_tree_sum<float>();
template StreamTreeSum<double> stream_tree_sum<double>();

}  // namespace lockstep::internal::reduce
