#include "lockstep/comm/join.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "lockstep/comm/interfaces.h"
#include "lockstep/comm/shared_memory/shared_memory_world.h"
#include "lockstep/core/error.h"
#include "lockstep/core/fingerprint.h"
#include "lockstep/version.h"

namespace lockstep {

namespace {

using std::chrono::milliseconds;

void check(const JoinOptions& options) {
  constexpr milliseconds kLongest = std::chrono::hours(365 * 24);
  if (options.engine != "auto" && options.engine != "shared-memory") {
    throw UsageError("LS-OPTION", fmt::format("the engine '{}' does not exist", options.engine),
                     "choose auto or shared-memory");
  }
  const WorkerTimeouts& times = options.timeouts;
  for (const auto& [name, time] : {std::pair(".join", times.join), std::pair(".lost", times.lost),
                                   std::pair(".stalled", times.stalled), std::pair(".patience", times.patience)}) {
    if (time >= milliseconds(1) && time <= kLongest) continue;
    throw UsageError("LS-OPTION", fmt::format("{} of WorkerTimeouts is {} ms", name, time.count()),
                     "give one millisecond to 365 days");
  }
}

void require_one_host(const ClusterSpec& cluster, milliseconds longest) {
  const std::string chief = cluster.chief_address();
  if (chief.empty() || internal::choose_interface(cluster, longest).chief_is_here) return;
  throw ClusterError("LS-CLUSTER-HOSTS",
                     fmt::format("worker {} is not on the host of the chief, {}", cluster.worker_index(), chief),
                     "start all workers on one host: workers of several hosts cannot be connected yet");
}

}  // namespace

std::shared_ptr<World> join(const ClusterSpec& cluster, const JoinOptions& options) {
  check(options);
  cluster.validate();
  const int64_t workers = cluster.num_workers();
  const int64_t index = cluster.worker_index();
  if (workers == 1) return internal::one_worker();
  const auto begin = std::chrono::steady_clock::now();
  require_one_host(cluster, std::min<milliseconds>(options.timeouts.join, std::chrono::seconds(10)));
  // Looking up the chief's name is part of joining.
  WorkerTimeouts timeouts = options.timeouts;
  timeouts.join -= std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
  return internal::join_shared_memory(
      {.name = fmt::format("user {}\n{}\n{}", geteuid(), cluster.job_id, cluster.chief_address()),
       .num_workers = workers,
       .worker_index = index,
       .secret = cluster.secret.reveal(),
       .must_match =
           fmt::format("Lockstep {}\n{}\nfingerprint {}\n.lost {} ms", LOCKSTEP_VERSION,
                       internal::platform_description(), internal::platform_fingerprint(), timeouts.lost.count())},
      timeouts);
}

}  // namespace lockstep
