#include "lockstep/replica/pool/pinning.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "lockstep/core/log.h"

namespace lockstep::internal::inline replica {

namespace {

bool set_affinity(const cpu_set_t& mask) { return sched_setaffinity(0, sizeof mask, &mask) == 0; }

}  // namespace

void pin_replica_thread(const LanePlan& plan, int lane) {
  const std::vector<int>& cores = plan.pinned() ? plan.cores[static_cast<std::size_t>(lane)] : plan.process_cores;
  if (cores.empty() || set_affinity_of_this_thread(cores) || !plan.pinned()) return;
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) {
    log(LogLevel::kWarning,
        fmt::format("lane {} could not be pinned to core {}: {}; lanes run unpinned, which may be slower",
                    plan.names[static_cast<std::size_t>(lane)], cores.front(), std::strerror(errno)));
  }
}

CallerPin::CallerPin(const LanePlan& plan, bool brief) {
  if (!plan.pinned() || plan.compute.threads > 1) return;
  const bool sleeps_beside_idle_cores = plan.num_replicas_of(0) > 1 && plan.num_lanes() < plan.available_cores;
  const bool hold = !brief || sleeps_beside_idle_cores;
  const std::vector<int>& lane = plan.cores.front();
  const int here = sched_getcpu();
  if (!hold && std::find(lane.begin(), lane.end(), here) != lane.end()) return;
  if (sched_getaffinity(0, sizeof before_, &before_) != 0) return;
  narrow_.emplace(before_);
  const bool narrowed = set_affinity_of_this_thread(lane);
  if (narrowed && hold) return;
  if (narrowed) set_affinity(before_);  // now it is there; the scheduler has no reason to move it away
  narrow_.reset();
}

CallerPin::~CallerPin() {
  if (narrow_) set_affinity(before_);
}

}  // namespace lockstep::internal::replica
