// Where a task of a run of parameter servers listens and whom it looks for, by the description of its cluster.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/cluster/cluster_spec.h"
#include "lockstep/comm/join/join.h"
#include "lockstep/comm/tasks/task_network.h"

namespace lockstep::internal::inline comm {

struct TaskPlace {
  TaskJob job;
  std::vector<std::string> chief;  // its numbers, the best first
  uint16_t chief_port = 0;
};

/// The workers are the tasks of the job "worker", the servers those of "ps", and there is one of "chief", whose address
/// all know. A ClusterError where one of them is missing, or the chief's address is not known (LS-CLUSTER-INCOMPLETE),
/// and for addresses and secrets as join() says. A UsageError (LS-OPTION) for an engine other than auto, tls and tcp.
TaskPlace place_of_task(const ClusterSpec& cluster, const JoinOptions& options);

}  // namespace lockstep::internal::comm
