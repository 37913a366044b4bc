// The lanes of this process, as a topology decided them and after a check: which lane carries which replicas, on which
// cores. There are no threads here; replica_pool.h has them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/blocks.h"
#include "lockstep/replica/pool/compute_settings.h"
#include "lockstep/replica/pool/cores.h"
#include "lockstep/replica/topology.h"

namespace lockstep::internal::inline replica {

/// A lane is a turn on the cores that at most one of its replicas holds at a time. Replicas are dealt to the lanes in
/// blocks.
struct LanePlan {
  std::vector<std::string> names;       // one for each lane, as the user wrote them
  int64_t num_replicas = 0;             // of this process; at least one for each lane
  ComputeSettings compute;              // of each replica
  std::vector<std::vector<int>> cores;  // one set for each lane; empty where lanes are not pinned
  std::vector<int> process_cores;       // that this process may use
  int64_t available_cores = 0;          // how many of them it can keep busy: fewer where it has a quota
  int64_t workers_on_cores = 1;         // of this host that use the same cores
  bool replicas_from_machine = false;   // the number of replicas comes from the cores, not from the program

  /// What a placement may look at.
  Lanes lanes() const { return {names, num_replicas, cores, replicas_from_machine}; }
  int num_lanes() const { return static_cast<int>(names.size()); }
  /// A lane has the `num_replicas_of(lane)` local replicas from `first_replica_of(lane)` on. The numbers of two lanes
  /// differ by at most one; the larger ones come first.
  int64_t num_replicas_of(int lane) const { return block_of(num_replicas, num_lanes(), lane).count; }
  int64_t first_replica_of(int lane) const { return block_of(num_replicas, num_lanes(), lane).first; }
  int lane_of(int64_t replica) const { return static_cast<int>(part_that_has(num_replicas, num_lanes(), replica)); }
  bool pinned() const { return !cores.empty(); }
  /// Whether there are more lanes, or more threads, than cores. Then a waiting lane must not use time that other lanes
  /// need.
  bool oversubscribed() const { return num_lanes() * compute.threads > available_cores; }
};

/// The plan of `topology`. Throws a UsageError where its lanes break the rules of Lanes: no lane, a device that is
/// named twice or is no lane of the host, fewer replicas than lanes, cores that the process may not use. Fewer than one
/// thread is a UsageError too.
LanePlan plan_lanes(const Topology& topology, Host host, const ComputeSettings& compute);

}  // namespace lockstep::internal::replica
