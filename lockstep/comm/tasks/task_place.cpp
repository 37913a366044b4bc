#include "lockstep/comm/tasks/task_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "lockstep/cluster/address.h"
#include "lockstep/comm/join/interfaces.h"
#include "lockstep/comm/progress.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

int64_t count_of(const ClusterSpec& cluster, const char* job) {
  const auto found = cluster.jobs.find(job);
  return found == cluster.jobs.end() ? 0 : static_cast<int64_t>(found->second.size());
}

TaskId task_of(const ClusterSpec& cluster) {
  if (cluster.job == "chief") return {.job = TaskId::Job::kChief, .task = 0};
  return {.job = cluster.job == "ps" ? TaskId::Job::kServer : TaskId::Job::kWorker, .task = cluster.task};
}

bool is_plaintext(const ClusterSpec& cluster, const std::string& engine) {
  if (engine == "tcp") return true;
  if (engine == "tls") return false;
  if (engine == "auto") return cluster.trusted_network;
  throw UsageError("LS-OPTION", fmt::format("the engine '{}' does not connect tasks of parameter servers", engine),
                   "choose auto, tls or tcp");
}

/// In a cluster that is being started a name may become known later.
OwnAddress own_address(const ClusterSpec& cluster, const TaskId& self, Progress& progress) {
  while (true) {
    try {
      return choose_interface(cluster, seconds(10));
    } catch (const ClusterError& error) {
      if (error.code() != "LS-CLUSTER-LOOK-UP" || progress.is_over()) throw;
      progress.tell([&] { return fmt::format("{} waits: {}", self.name(), error.what()); });
      std::this_thread::sleep_for(milliseconds(200));
    }
  }
}

}  // namespace

TaskPlace place_of_task(const ClusterSpec& cluster, const JoinOptions& options) {
  cluster.validate();
  for (const milliseconds time : {options.timeouts.join, options.timeouts.lost}) {
    if (time >= milliseconds(1) && time <= std::chrono::hours(365 * 24)) continue;
    throw UsageError("LS-OPTION", fmt::format(".join or .lost of WorkerTimeouts is {} ms", time.count()),
                     "give one millisecond to 365 days");
  }
  for (const char* job : {"chief", "ps", "worker"}) {
    if (count_of(cluster, job) > 0) continue;
    throw ClusterError("LS-CLUSTER-INCOMPLETE",
                       fmt::format("the cluster has tasks of parameter servers, and none of the job '{}'", job),
                       "describe one task of 'chief', and one or more of 'worker' and of 'ps'");
  }
  if (cluster.chief_address().empty()) {
    throw ClusterError("LS-CLUSTER-INCOMPLETE",
                       "the cluster has parameter servers, and the chief's address is not known",
                       "give the address of the job 'chief' to all tasks");
  }
  Progress progress(options.timeouts.join);
  TaskPlace place{.job = {.self = task_of(cluster)}, .chief = {}};
  const OwnAddress own = own_address(cluster, place.job.self, progress);
  const Address chief = parse_address({"the chief's address", cluster.chief_address()});
  place.chief = look_up(in_own_zone(chief.host, cluster.interface_name, network_interfaces()), seconds(10));
  place.chief_port = chief.port;
  place.job.workers = count_of(cluster, "worker");
  place.job.servers = count_of(cluster, "ps");
  place.job.id = cluster.job_id;
  place.job.secret = cluster.secret.reveal();
  place.job.plaintext = is_plaintext(cluster, options.engine);
  place.job.lost = options.timeouts.lost;
  place.job.address = own.address;
  const bool is_chief = place.job.self.job == TaskId::Job::kChief;
  if (is_chief) {
    place.job.port = chief.port;
  } else if (!cluster.address().empty()) {
    place.job.port = parse_address({"the task's address", cluster.address()}).port;
  }
  if (is_chief && std::find(place.chief.begin(), place.chief.end(), own.address) == place.chief.end()) {
    throw ClusterError("LS-CLUSTER-INTERFACE",
                       fmt::format("the chief would listen at {}, and the others look for it at {}", own.address,
                                   cluster.chief_address()),
                       "give the job 'chief' an address of its host, and of the interface in LOCKSTEP_INTERFACE if "
                       "that is set");
  }
  if (cluster.secret.is_empty() && !is_loopback(own.address)) {
    throw ClusterError("LS-CLUSTER-SECRET",
                       fmt::format("{} would talk to others at {} without a secret, where anybody may come",
                                   place.job.self.name(), own.address),
                       "set LOCKSTEP_SECRET_FILE or LOCKSTEP_SECRET to the same secret on all tasks; `openssl rand "
                       "-hex 32` makes one");
  }
  return place;
}

}  // namespace lockstep::internal::comm
