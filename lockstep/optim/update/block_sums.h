// Sums over replicas of blocks of gradients that lie in the host's memory, or are made there from factors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/gradient/gradient_table.h"
#include "lockstep/optim/loops/clip.h"
#include "lockstep/optim/update/update_plan.h"
#include "lockstep/reduce/factors.h"

namespace lockstep::internal::inline optim {

/// One lane's. A sum is valid until the next call.
class BlockSums {
 public:
  /// Adds the leaves of these replicas.
  explicit BlockSums(ReplicaRange replicas);

  /// Gets memory for gradients of this shape that are made from factors.
  void expect_factors(int64_t rows, int64_t columns);
  /// Call as a pass begins.
  void restart() {
    for (FactorBlocks& made : made_) made.restart();
  }

  /// The sum of elements [offset, offset + count) of variable i's gradients, at most a block of them. T is float or
  /// double, as the variable's elements are.
  template <class T>
  GradientSum<T> sum(const GradientTable& gradients, std::size_t i, int64_t offset, int64_t count);
  /// The same of at most kSumBlock elements of half precision, added as float. `buffer` has room for as many of each
  /// replica, and then points behind what was used of it.
  template <class Half>
  GradientSum<float> wide_sum(const GradientTable& gradients, std::size_t i, int64_t offset, int64_t count,
                              float*& buffer);

 private:
  template <class T>
  GradientSum<T> sum_of_row(int64_t count);

  ReplicaRange replicas_;
  std::vector<const void*> row_;    // a block of each replica's gradients, or null
  std::vector<FactorBlocks> made_;  // blocks of gradients that are factors, by replica
  std::vector<char> scratch_;       // rows of kSumBlock elements
};

}  // namespace lockstep::internal::optim
