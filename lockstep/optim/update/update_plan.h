// What an update does, apart from the memory in which values lie: which blocks of which variable, which lane has them,
// and whose leaves are added.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/core/loops/checksum.h"
#include "lockstep/gradient/block_shares.h"
#include "lockstep/optim/loops/update_block.h"

namespace lockstep::internal::inline optim {

/// The replicas whose leaves are added, and whose components the sum updates.
struct ReplicaRange {
  int64_t first;
  int64_t count;
};

struct PlannedTarget {
  int64_t bytes = 0;
  int64_t first_block = 0;  // its index among the blocks of all targets
  at::ScalarType type = at::kFloat;
  UpdateKind kind = UpdateKind::kOwn;
  int slots = 0;
  bool together = false;  // its rule takes whole variables

  int64_t blocks() const { return blocks_of(bytes); }
};

/// Blocks [first, end) of a target. A block is kBlockBytes; the last one of a target may be shorter.
struct BlockRange {
  std::size_t target;
  int64_t first;
  int64_t end;
};

/// A value, which is a function of its arguments: any memory may execute it, on lanes side by side.
///
/// Invariant: one lane handles a block as a whole; of a variable whose rule takes whole variables, one lane handles all
/// blocks. So no sum, norm or checksum depends on the number of lanes, and no two lanes write the same bytes.
class UpdatePlan {
 public:
  /// `first_block` of the targets is filled in. This process has the lanes `lanes`.
  UpdatePlan(std::vector<PlannedTarget> targets, ReplicaRange replicas, LaneRange lanes);

  const std::vector<PlannedTarget>& targets() const { return targets_; }
  const ReplicaRange& replicas() const { return replicas_; }
  /// Which lane of all has which blocks, and which lanes are of this process.
  const BlockShares& shares() const { return shares_; }
  const LaneRange& lanes() const { return lanes_; }
  int64_t num_blocks() const { return shares_.num_blocks(); }

  /// Calls visit(blocks) for the blocks of a lane of this process, counted from 0: once for each target that it has
  /// blocks of, in order.
  template <class Visit>
  void for_each_range(int lane, const Visit& visit) const {
    const BlockShares::Position begin = shares_.begin(lanes_.first + lane);
    const BlockShares::Position end = shares_.begin(lanes_.first + lane + 1);
    for (std::size_t i = begin.variable; i < targets_.size() && i <= end.variable; ++i) {
      const int64_t first = i == begin.variable ? begin.block : 0;
      const int64_t last = i == end.variable ? end.block : targets_[i].blocks();
      if (first < last) visit(BlockRange{i, first, last});
    }
  }

 private:
  std::vector<PlannedTarget> targets_;
  ReplicaRange replicas_;
  LaneRange lanes_;
  BlockShares shares_;
};

}  // namespace lockstep::internal::optim
