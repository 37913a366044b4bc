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

/// Where the slices of some variables lie in a message that has one worker's slices, one after another.
class SliceRow {
 public:
  /// `taken[i]` says whether variable i travels.
  void lay_out(const Slices& slices, std::vector<char> taken);

  const std::vector<char>& taken() const { return taken_; }
  bool takes(std::size_t i) const { return i < taken_.size() && taken_[i] != 0; }
  /// How long the message of a worker's slices is.
  int64_t bytes(int64_t worker) const { return bytes_[static_cast<std::size_t>(worker)]; }
  /// Where byte `offset` of variable i lies in it, which is in the worker's slice. A slice begins at a multiple of 64.
  int64_t place_of(std::size_t i, int64_t worker, int64_t offset) const {
    return places_[i * bytes_.size() + static_cast<std::size_t>(worker)] + offset;
  }

 private:
  std::vector<char> taken_;
  std::vector<int64_t> bytes_;   // by worker
  std::vector<int64_t> places_;  // by variable, then worker: of byte 0, which may be before the message
};

}  // namespace lockstep::internal::exchange
