#include "lockstep/exchange/partial_sums.h"

#include "lockstep/core/blocks.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline exchange {

PartialSums::PartialSums(const ReplicaGroup& group)
    : first_replica_(group.first_replica()), made_(static_cast<std::size_t>(group.plan().num_lanes())) {
  constexpr int64_t kMadeElements = 16 << 10;  // of all replicas' blocks, together: they stay in a cache
  const int64_t replicas = group.num_local_replicas();
  for (auto& of_lane : made_) {
    of_lane.assign(static_cast<std::size_t>(replicas), FactorBlocks(kMadeElements / replicas));
  }
  for (int64_t w = 0; w < group.num_workers(); ++w) {
    const Block block = block_of(group.num_replicas(), group.num_workers(), w);
    subtrees_.push_back(maximal_subtrees(group.num_replicas(), block.first, block.count));
  }
}

}  // namespace lockstep::internal::exchange
