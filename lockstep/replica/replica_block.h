// Which replicas of a run this process has.
#pragma once

#include <cstdint>

#include "lockstep/core/ids.h"

namespace lockstep::internal::inline comm {
class Rounds;
}  // namespace lockstep::internal::comm

namespace lockstep::internal::inline replica {

/// A block of neighbouring replicas. Ids count over the whole run. A local index counts from 0 within this process and
/// is nothing but a position in arrays.
struct ReplicaBlock {
  int64_t first = 0;  // the id of local index 0
  int64_t local = 1;  // how many replicas this process has
  int64_t all = 1;    // how many the run has over all workers

  constexpr ReplicaId id_of(int64_t local_index) const { return first + local_index; }
  constexpr bool has(ReplicaId id) const { return id >= first && id < first + local; }
  /// `id` must be a replica of this process.
  constexpr int64_t local_index_of(ReplicaId id) const { return id - first; }
};

/// The block of this worker, which has `local` replicas. All workers call it, and each tells the others how many
/// replicas it has. Throws a UsageError, on every worker, unless the numbers differ by at most one and the larger ones
/// come first.
ReplicaBlock block_of_worker(Rounds& rounds, int64_t local);

}  // namespace lockstep::internal::replica
