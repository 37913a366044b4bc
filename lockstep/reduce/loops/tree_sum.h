// Adds the replicas' values of a range of memory in tree order: the inner loop of every reduction of the library.
#pragma once

#include <cstdint>

#include "lockstep/reduce/addition_order.h"

namespace lockstep::internal::inline reduce {

/// How many elements are summed at a time, so that the sums between two additions stay in the first-level cache.
inline constexpr int64_t kSumBlock = 2048;

/// How many scratch rows of kSumBlock elements a sum over `replicas` needs.
constexpr int64_t scratch_rows(int64_t replicas) {
  int64_t rows = 1;
  for (int64_t count = replicas; count > 1; count = split_of(count)) ++rows;
  return rows;
}

/// Up to this many replicas, where all are present, need one row of scratch only, and that row may be where the result
/// is to stay.
inline constexpr int64_t kOneRowReplicas = 8;

/// The sum over `replicas` inputs of elements [offset, offset + count), count <= kSumBlock, in tree order. A null input
/// is absent: it is skipped, not added as zero. Returns where the sum is: in `scratch` (scratch_rows(replicas) rows),
/// or in the input itself where only one is present; null where none is.
template <class T>
using TreeSum = const T* (*)(const T* const* inputs, int64_t replicas, int64_t offset, int64_t count, T* scratch);

/// The loop for this processor. T is float, double or int64_t (other integers are summed through it).
template <class T>
TreeSum<T> tree_sum();

/// Writes the sum or mean of elements [begin, end), in tree order, to as many outputs as there are inputs, at the same
/// offsets. It writes past the caches, so it is for results that are larger than these. There are at most
/// kOneRowReplicas inputs, and all are present. Each output is at a multiple of kStreamAlignment at `begin`, and no
/// output overlaps an input. The bits are those of TreeSum.
template <class T>
using StreamTreeSum = void (*)(const T* const* inputs, int64_t replicas, int64_t begin, int64_t end, bool mean,
                               T* const* outputs);
inline constexpr uintptr_t kStreamAlignment = 64;

/// The loop for this processor. T is float or double.
template <class T>
StreamTreeSum<T> stream_tree_sum();

}  // namespace lockstep::internal::reduce
