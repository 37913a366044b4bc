#include "lockstep/replica/pinning.h"

#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "lockstep/core/log.h"

namespace lockstep::internal {

namespace {

cpu_set_t mask_of(const std::vector<int>& cores) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const int core : cores) CPU_SET(core, &mask);
  return mask;
}

bool pin_this_thread(const cpu_set_t& mask) { return sched_setaffinity(0, sizeof mask, &mask) == 0; }

}  // namespace

void pin_replica_thread(const LanePlan& plan, int lane) {
  if (!plan.pinned() || pin_this_thread(mask_of(plan.cores[lane]))) return;
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) {
    log(LogLevel::kWarning,
        fmt::format("lane {} could not be pinned to core {}: {}; lanes run unpinned, which may be slower",
                    plan.names[lane], plan.cores[lane].front(), std::strerror(errno)));
  }
}

CallerPin::CallerPin(const LanePlan& plan, bool brief) {
  if (!plan.pinned() || plan.compute.threads > 1) return;
  const bool sleeps_beside_idle_cores = plan.replicas_per_lane() > 1 && plan.num_lanes() < plan.available_cores;
  const bool hold = !brief || sleeps_beside_idle_cores;
  const cpu_set_t lane = mask_of(plan.cores.front());
  const int here = sched_getcpu();
  if (!hold && here >= 0 && CPU_ISSET(here, &lane)) return;
  if (sched_getaffinity(0, sizeof before_, &before_) != 0) return;
  pinned_ = pin_this_thread(lane);
  if (pinned_ && !hold) {  // now it is there; the scheduler has no reason to move it away
    pin_this_thread(before_);
    pinned_ = false;
  }
}

CallerPin::~CallerPin() {
  if (pinned_) pin_this_thread(before_);
}

}  // namespace lockstep::internal
