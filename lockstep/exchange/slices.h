// Which part of each variable a worker updates, where workers divide an optimizer's update.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/gradient/block_shares.h"

namespace lockstep::internal::inline exchange {

/// Neighbouring bytes of a variable, or of a slot of it, which has the same layout.
struct Slice {
  int64_t begin = 0;
  int64_t bytes = 0;
  int64_t end() const { return begin + bytes; }
};

/// The slices of an update. All blocks of all variables, in order, are cut into one row of neighbours for each worker,
/// which take about as long to update. A slice is what a worker has of one variable; it begins and ends where blocks
/// do, and may be empty. The cut follows from the variables and the number of workers alone.
class Slices {
 public:
  /// Which lanes this process has in an update, as if all workers had as many. The cut does not depend on `lanes`.
  static LaneRange lanes_of(int64_t worker, int64_t num_workers, int lanes);
  /// `shares` are of as many lanes as lanes_of() says.
  Slices(const BlockShares& shares, int64_t num_workers, int lanes);

  int64_t num_workers() const { return static_cast<int64_t>(first_block_.size()) - 1; }
  Slice of(std::size_t i, int64_t worker) const {
    return slices_[i * (first_block_.size() - 1) + static_cast<std::size_t>(worker)];
  }
  /// The first of a worker's blocks, counted over all variables; of the number of workers: how many blocks there are.
  int64_t first_block(int64_t worker) const { return first_block_[static_cast<std::size_t>(worker)]; }

 private:
  std::vector<int64_t> first_block_;
  std::vector<Slice> slices_;  // by variable, then worker
};

}  // namespace lockstep::internal::exchange
