#include "lockstep/replica/replica_block.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/comm/world.h"
#include "lockstep/core/blocks.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {

ReplicaBlock block_of_worker(World& world, int64_t local) {
  const int64_t workers = world.num_workers();
  if (workers == 1) return {.first = 0, .local = local, .all = local};
  std::vector<int64_t> counts;
  for (const Proposal& one : propose(world, {.call = "replicas", .signature = 0, .replica = local})) {
    counts.push_back(one.replica);
  }
  const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  for (int64_t w = 0; w < workers; ++w) {
    if (counts[static_cast<std::size_t>(w)] == block_of(all, workers, w).count) continue;
    throw UsageError(
        "LS-WORKER-ORDER",
        fmt::format("the workers have {} replicas; worker {} should have {} of the {} in all", fmt::join(counts, ", "),
                    w, block_of(all, workers, w).count, all),
        "deal the replicas of the run to the workers in blocks that differ by at most one, the larger first");
  }
  return {.first = block_of(all, workers, world.worker_index()).first, .local = local, .all = all};
}

}  // namespace lockstep::internal
