// What each worker hands on of its replicas' gradients: a sum for each maximal subtree of its block of replicas.
#pragma once

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/gradient/gradient_table.h"
#include "lockstep/reduce/addition_order.h"
#include "lockstep/reduce/factors.h"
#include "lockstep/reduce/loops/tree_sum.h"

namespace lockstep::internal::inline exchange {

/// Scratch memory of the calling thread for sums of so many replicas.
template <class T>
T* scratch_for(int64_t replicas) {
  thread_local std::vector<T> scratch;  // grown once
  const auto size = static_cast<std::size_t>(scratch_rows(replicas) * kSumBlock);
  if (scratch.size() < size) scratch.resize(size);
  return scratch.data();
}

/// Lanes call restart() and write() side by side, each with its own number.
class PartialSums {
 public:
  explicit PartialSums(const ReplicaGroup& group);

  int64_t num_workers() const { return static_cast<int64_t>(subtrees_.size()); }
  /// Those of a worker's block of replicas.
  const std::vector<Subtree>& subtrees(int64_t worker) const { return subtrees_[static_cast<std::size_t>(worker)]; }

  /// Call on each lane before its first write() of a step.
  void restart(int lane) {
    for (FactorBlocks& one : made_[static_cast<std::size_t>(lane)]) one.restart();
  }
  /// Writes elements [offset, offset + count), count <= kSumBlock, of the sum of variable `i`'s gradients over
  /// `subtree`, one of this worker's, to `to`, by `copy(to, from, bytes)`.
  template <class T, class Copy>
  void write(const GradientTable& gradients, int lane, std::size_t i, int64_t offset, int64_t count,
             const Subtree& subtree, T* to, const Copy& copy);

 private:
  int64_t first_replica_;
  std::vector<std::vector<Subtree>> subtrees_;   // by worker
  std::vector<std::vector<FactorBlocks>> made_;  // by lane, then local replica: blocks of factors that become sums
};

template <class T, class Copy>
void PartialSums::write(const GradientTable& gradients, int lane, std::size_t i, int64_t offset, int64_t count,
                        const Subtree& subtree, T* to, const Copy& copy) {
  static const TreeSum<T> sum_of = tree_sum<T>();
  std::vector<FactorBlocks>& made = made_[static_cast<std::size_t>(lane)];
  c10::SmallVector<const T*, 16> inputs;
  for (int64_t r = subtree.first - first_replica_; r < subtree.first - first_replica_ + subtree.count; ++r) {
    inputs.push_back(gradients.own_leaf(i, r).block<T>(offset, count, made[static_cast<std::size_t>(r)]));
  }
  const T* const sum = sum_of(inputs.data(), subtree.count, 0, count, scratch_for<T>(subtree.count));
  if (sum) {
    copy(to, sum, static_cast<std::size_t>(count) * sizeof(T));
  } else {
    std::fill_n(to, count, static_cast<T>(-0.0));  // adds nothing: x + -0 has the bits of x for every x
  }
}

}  // namespace lockstep::internal::exchange
