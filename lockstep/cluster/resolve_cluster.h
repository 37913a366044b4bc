// Asks all sources who this process is, and says which one won and what the others say differently.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cluster/cluster_resolver.h"
#include "lockstep/cluster/cluster_spec.h"
#include "lockstep/cluster/secret.h"
#include "lockstep/cluster/sources/environment.h"

namespace lockstep {

/// What a program says itself. Each member has a variable of the same meaning, and goes before it.
struct ClusterOptions {
  /// LOCKSTEP_NUM_WORKERS and LOCKSTEP_WORKER_INDEX: both, or `.num_workers = 1`. Then no other source wins.
  std::optional<int64_t> num_workers = {};
  std::optional<int64_t> worker_index = {};
  /// LOCKSTEP_CHIEF_ADDRESS, "host:port". This and the following hold whichever source wins.
  std::optional<std::string> chief_address = {};
  /// LOCKSTEP_LOCAL_WORKER.
  std::optional<int64_t> local_worker = {};
  /// LOCKSTEP_JOB_ID.
  std::optional<std::string> job_id = {};
  /// LOCKSTEP_SECRET or the contents of LOCKSTEP_SECRET_FILE.
  std::optional<Secret> secret = {};
  /// LOCKSTEP_INTERFACE.
  std::optional<std::string> interface_name = {};
  /// LOCKSTEP_TRUSTED_NETWORK, 0 or 1.
  std::optional<bool> trusted_network = {};
  /// Sources of one's own, which are asked before the library's, in this order.
  std::vector<std::shared_ptr<const ClusterResolver>> resolvers = {};
  /// LOCKSTEP_PS: how many of the tasks that the winner counts are parameter servers. The first task is the chief then,
  /// and the last ones are the servers. This and the following hold where the winner names no jobs itself.
  std::optional<int64_t> servers = {};
  /// LOCKSTEP_EVALUATOR, 0 or 1: the last task of all is the evaluator.
  std::optional<bool> evaluator = {};
};

/// Who this process is. The first source that applies wins: the options, their resolvers, LOCKSTEP_*, TF_CONFIG,
/// torchrun, PET_*, Open MPI, PMI, Slurm, Flux and others, PMIx, Kubernetes; otherwise the process is alone.
/// docs/cluster.md has the variables of each, and when it applies.
///
/// A ClusterError where the winner's values are malformed (LS-CLUSTER-VALUE), incomplete (LS-CLUSTER-INCOMPLETE) or
/// contradict each other (LS-CLUSTER-SPEC), where the winner describes one worker and another source several
/// (LS-CLUSTER-ONE-WORKER; not where the options say so), where it does not fit LOCKSTEP_PS, and for the secret
/// (LS-CLUSTER-SECRET). Also where nothing applies, and a variable says that this process is one of several
/// (LS-CLUSTER-INCOMPLETE). Whatever else other sources say differently stands in ClusterSpec::disagreements. The
/// result is valid, and one of several workers has the chief's address.
///
/// Reads the environment and the file of the secret; opens no connection. Call from any thread, while no thread calls
/// setenv.
ClusterSpec resolve_cluster(const ClusterOptions& options = {});

/// The same for a given environment.
ClusterSpec resolve_cluster(const ClusterOptions& options, const Environment& environment);

}  // namespace lockstep
