// Which replicas of a run this process has.
#pragma once

#include <cstdint>

#include "lockstep/core/ids.h"

namespace lockstep {
class World;
}

namespace lockstep::internal {

/// A block of neighbours. Ids count over the whole run; a local index, from 0, counts within this process and is a
/// position in arrays and nothing else.
struct ReplicaBlock {
  int64_t first = 0;  // the id of local index 0
  int64_t local = 1;  // how many replicas this process has
  int64_t all = 1;    // how many the run has over all workers

  constexpr ReplicaId id_of(int64_t local_index) const { return first + local_index; }
  constexpr bool has(ReplicaId id) const { return id >= first && id < first + local; }
  /// Of a replica that this process has.
  constexpr int64_t local_index_of(ReplicaId id) const { return id - first; }
};

/// The block of this worker, which has `local` replicas, after all workers have said how many they have. A UsageError,
/// on every worker, unless their blocks differ by at most one, the first ones being the larger.
ReplicaBlock block_of_worker(World& world, int64_t local);

}  // namespace lockstep::internal
