// Which tasks are the chief, workers, parameter servers and the evaluator, where a launcher counts tasks only.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/cluster/cluster_spec.h"

namespace lockstep::internal::inline cluster {

/// How many of the tasks that a launcher has started are no workers. The texts say who asked for it, "LOCKSTEP_PS=2".
struct JobCounts {
  int64_t servers = 0;
  std::string servers_by = {};
  bool has_evaluator = false;
  std::string evaluator_by = {};
};

/// Deals the tasks of a description that has workers only to jobs, by their numbers: with servers, the first one is the
/// chief, then come the workers, then the servers; the last task of all is the evaluator, which is not listed, because
/// nobody waits for it. A description with jobs of its own stays as it is, and must have as many servers. Nothing
/// happens where neither servers nor an evaluator are asked for.
///
/// A ClusterError: LS-CLUSTER-SPEC where there are too few tasks for that, and where a description with jobs of its own
/// says otherwise; LS-CLUSTER-INCOMPLETE where nobody says how many tasks there are.
void deal_jobs(ClusterSpec& spec, const JobCounts& counts);

/// For a strategy with parameter servers, of a description that has some: a ClusterError (LS-CLUSTER-SPEC) where it has
/// no chief or no worker.
void require_chief_and_workers(const ClusterSpec& spec);

}  // namespace lockstep::internal::cluster
