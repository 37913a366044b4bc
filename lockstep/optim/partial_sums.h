// One worker's sum of the gradients of a subtree of its replicas, for other workers.
#pragma once

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "lockstep/optim/gradient_table.h"
#include "lockstep/reduce/addition_order.h"
#include "lockstep/reduce/tree_sum.h"

namespace lockstep::internal {

/// Scratch memory of the calling thread for sums of so many replicas.
template <class T>
T* scratch_for(int64_t replicas) {
  thread_local std::vector<T> scratch;  // grown once
  const auto size = static_cast<std::size_t>(scratch_rows(replicas) * kSumBlock);
  if (scratch.size() < size) scratch.resize(size);
  return scratch.data();
}

/// Writes elements [offset, offset + count), count <= kSumBlock, of the sum of variable `i`'s gradients over `subtree`
/// to `to`, by `copy(to, from, bytes)`. `first` is the first local replica, and `made` has an entry for each.
template <class T, class Copy>
void write_partial_sum(const GradientTable& gradients, std::size_t i, int64_t offset, int64_t count,
                       const Subtree& subtree, int64_t first, std::vector<FactorBlocks>& made, T* to,
                       const Copy& copy) {
  static const TreeSum<T> sum_of = tree_sum<T>();
  c10::SmallVector<const T*, 16> inputs;
  for (int64_t r = subtree.first; r < subtree.first + subtree.count; ++r) {
    inputs.push_back(
        gradients.own_leaf(i, r - first).block<T>(offset, count, made[static_cast<std::size_t>(r - first)]));
  }
  const T* const sum = sum_of(inputs.data(), subtree.count, 0, count, scratch_for<T>(subtree.count));
  if (sum) {
    copy(to, sum, static_cast<std::size_t>(count) * sizeof(T));
  } else {
    std::fill_n(to, count, static_cast<T>(-0.0));  // adds nothing: x + -0 has the bits of x for every x
  }
}

}  // namespace lockstep::internal
