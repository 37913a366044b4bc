// The lanes of this process as a topology decided them, checked: which lane carries which replicas, on which cores.
// Pure; threads are next door.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/replica/compute_settings.h"
#include "lockstep/replica/topology.h"

namespace lockstep::internal {

/// A lane is a turn that at most one of its replicas holds at any time. Replicas are dealt to the lanes in blocks.
struct LanePlan {
  std::vector<std::string> names;       // one for each lane, as the user wrote them
  int64_t num_replicas = 0;             // of this process; a multiple of the number of lanes
  ComputeSettings compute;              // of each replica
  std::vector<std::vector<int>> cores;  // one set for each lane; empty where lanes are not pinned
  int64_t available_cores = 0;          // cores that this process may use
  bool replicas_from_machine = false;   // nobody asked for this number of replicas: it is the number of cores

  /// What a placement may look at.
  Lanes lanes() const { return {names, num_replicas, cores, replicas_from_machine}; }
  int num_lanes() const { return static_cast<int>(names.size()); }
  int64_t replicas_per_lane() const { return num_replicas / num_lanes(); }
  int64_t first_replica_of(int lane) const { return lane * replicas_per_lane(); }
  int lane_of(int64_t replica) const { return static_cast<int>(replica / replicas_per_lane()); }
  bool pinned() const { return !cores.empty(); }
  /// More lanes, or more threads, than cores: waiting lanes must not burn what the others need.
  bool oversubscribed() const { return num_lanes() * compute.threads > available_cores; }
};

/// The plan of `topology`. Throws a UsageError where its lanes break the rules of Lanes: no lane, a device twice or one
/// that is no lane of the host, a number of replicas that the lanes do not divide, cores that the process may not use;
/// and for fewer than one thread.
LanePlan plan_lanes(const Topology& topology, Host host, const ComputeSettings& compute);

/// The cores in this process's affinity mask, in ascending order.
std::vector<int> cores_of_this_process();

}  // namespace lockstep::internal
