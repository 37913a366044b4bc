// How this process becomes one of the workers of its job.
#pragma once

#include <memory>
#include <string>

#include "lockstep/cluster/cluster_spec.h"
#include "lockstep/comm/timeouts.h"
#include "lockstep/comm/world.h"

namespace lockstep {

/// How the workers of a job are connected. Give the same options to all workers; only `timeouts.lost` is compared.
struct JoinOptions {
  /// What moves the bytes: "auto" or "shared-memory". Workers of several hosts cannot be connected yet.
  std::string engine = "auto";
  WorkerTimeouts timeouts = {};
};

/// Meets all other workers of the job that `cluster` describes, and gives the World through which this worker reaches
/// them; StrategySetup::world takes it. It waits until all have come. A process that is alone gets a World of one
/// worker at once.
///
/// All workers must run on one host, under one user, with the same builds of Lockstep and LibTorch and equal
/// fingerprints (core/fingerprint.h). Those that have the job's id, the chief's address and the secret in common meet;
/// no port is opened.
///
/// A ClusterError where that is not so (LS-CLUSTER-DIFFERS, LS-CLUSTER-HOSTS), where workers are missing after
/// `timeouts.join` (LS-CLUSTER-JOIN), where the chief's name or the route to it cannot be found (LS-CLUSTER-HOST,
/// LS-CLUSTER-INTERFACE), where the system refuses memory or a socket (LS-CLUSTER-MEMORY, LS-CLUSTER-SOCKET), and for a
/// `cluster` that validate() refuses. A UsageError for an engine that does not exist, for a time out of its bounds
/// (LS-OPTION), and for a parameter server (LS-CLUSTER-JOB).
///
/// Call it once for a job, from any thread. Destroy the World on every worker when the work is done: a worker that ends
/// earlier ends the run of all others.
std::shared_ptr<World> join(const ClusterSpec& cluster, const JoinOptions& options = {});

}  // namespace lockstep
