// Where the replicas of this process run: which lane carries which replicas, on which cores. Pure; threads are next
// door.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/replica/compute_settings.h"

namespace lockstep::internal {

/// A lane is a turn that at most one of its replicas holds at any time. Replicas are dealt to the lanes in blocks.
struct LanePlan {
  std::vector<std::string> names;       // one for each lane, as the user wrote them
  int64_t num_replicas = 0;             // of this process; a multiple of the number of lanes
  ComputeSettings compute;              // of each replica
  std::vector<std::vector<int>> cores;  // one set for each lane; empty where lanes are not pinned
  int64_t available_cores = 0;          // cores that this process may use
  bool replicas_from_machine = false;   // nobody asked for this number of replicas: it is the number of cores

  int num_lanes() const { return static_cast<int>(names.size()); }
  int64_t replicas_per_lane() const { return num_replicas / num_lanes(); }
  int64_t first_replica_of(int lane) const { return lane * replicas_per_lane(); }
  int lane_of(int64_t replica) const { return static_cast<int>(replica / replicas_per_lane()); }
  bool pinned() const { return !cores.empty(); }
  /// More lanes, or more threads, than cores: waiting lanes must not burn what the others need.
  bool oversubscribed() const { return num_lanes() * compute.threads > available_cores; }
};

/// What a user may leave open, as in MirroredOptions.
struct LaneRequest {
  std::vector<std::string> devices;  // empty: as many lanes as cores, or the largest number that divides `replicas`
  int64_t replicas = 0;              // 0: one for each lane
  ComputeSettings compute = {};
};

/// Decides the lanes. `cores` are those of the process's affinity mask; worker `local_worker` of this host starts
/// after those of the workers before it. Throws UsageError for what section 2 of the design forbids: a device twice,
/// a number of replicas that the lanes do not divide, fewer than one replica or thread.
LanePlan plan_lanes(const LaneRequest& request, const std::vector<int>& cores, int64_t local_worker);

/// The cores in this process's affinity mask, in ascending order.
std::vector<int> cores_of_this_process();

}  // namespace lockstep::internal
