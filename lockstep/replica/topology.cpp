#include "lockstep/replica/topology.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "lockstep/core/blocks.h"
#include "lockstep/core/error.h"

namespace lockstep {

HostTopology::HostTopology(std::vector<std::string> devices, int64_t replicas, bool pinned)
    : devices_(std::move(devices)), replicas_(replicas), pinned_(pinned) {
  if (replicas >= 0) return;
  throw UsageError("LS-OPTION", fmt::format(".replicas is {}", replicas),
                   "ask for at least one replica, or leave it out");
}

Lanes HostTopology::lanes(const Host& host) const {
  const int64_t available = host.available_cores();
  if (replicas_ > 0 && replicas_ < host.num_workers) {
    throw UsageError("LS-OPTION", fmt::format(".replicas is {} for {} workers", replicas_, host.num_workers),
                     "ask for at least one replica for each worker");
  }
  const int64_t local = internal::block_of(replicas_, host.num_workers, host.worker_index).count;
  Lanes lanes{devices_, local};
  if (lanes.devices.empty()) {
    const int64_t count = replicas_ == 0 ? available : std::min(local, available);
    for (int64_t lane = 0; lane < count; ++lane) lanes.devices.push_back(fmt::format("cpu:{}", lane));
    lanes.replicas_from_machine = replicas_ == 0;
  }
  const auto count = static_cast<int64_t>(lanes.devices.size());
  if (replicas_ == 0) lanes.replicas = count;
  const int64_t needed = count * host.threads_per_replica;
  const bool all_are_ours = available == static_cast<int64_t>(host.cores.size());
  if (!pinned_ || !all_are_ours || needed > available) return lanes;
  auto next = static_cast<std::size_t>(host.first_core + host.local_worker * needed);
  for (int64_t lane = 0; lane < count; ++lane) {
    std::vector<int>& set = lanes.cores.emplace_back();
    for (int thread = 0; thread < host.threads_per_replica; ++thread) {
      set.push_back(host.cores[next++ % host.cores.size()]);
    }
  }
  return lanes;
}

}  // namespace lockstep
