// How this process becomes one of the workers of its job.
#pragma once

#include <memory>
#include <string>

#include "lockstep/cluster/cluster_spec.h"
#include "lockstep/comm/timeouts.h"
#include "lockstep/comm/world.h"

namespace lockstep {

/// How the workers of a job are connected. Give the same options to all workers; `engine` and `timeouts.lost` are
/// compared.
struct JoinOptions {
  /// What moves the bytes.
  /// - "shared-memory": memory that all workers map. All of them run on one host, under one user. No port is opened.
  /// - "tls": encrypted connections between all workers, wherever they run.
  /// - "tcp": the same connections, which are not encrypted after both sides have proved that they know the secret: for
  ///   networks on which nobody else can read or write.
  /// - "ucx": UCX, for networks with RDMA. Its bytes are neither encrypted nor authenticated, so that it refuses a
  /// public
  ///   address, unless ClusterSpec::trusted_network says that nobody else can read or write there.
  /// - "mpi": MPI, where mpirun or srun has started the workers; the same holds for its bytes. A worker's index is its
  /// rank.
  /// - "auto": shared memory where all workers run on one host and under one user. Otherwise "tls". Where
  ///   ClusterSpec::trusted_network says so, "ucx" if all workers have it and a device with RDMA, and otherwise "tcp".
  /// Where workers are on several hosts and "tls" or "tcp" connects them, those of one host and one user exchange bytes
  /// through memory that only they map, and have HostMemory.
  /// "ucx" and "mpi" are plug-ins: libraries beside this one, which are built where UCX and MPI are found.
  std::string engine = "auto";
  WorkerTimeouts timeouts = {};
};

/// Meets all other workers of the job that `cluster` describes, and gives the World through which this worker reaches
/// them; StrategySetup::world takes it. It waits until all have come. A process that is alone gets a World of one
/// worker at once.
///
/// All workers must have the same builds of Lockstep and LibTorch, equal fingerprints (core/fingerprint.h), and the
/// job's id, the chief's address and the secret in common. Workers of several hosts must have a secret. They meet at
/// the chief's address, where the chief listens as long as its World lives; each other worker listens at the port of
/// its own address, or at one that is free. Only those who know the secret can do anything there.
///
/// A ClusterError where workers do not fit together (LS-CLUSTER-DIFFERS), where another process has joined as this
/// worker (LS-CLUSTER-TAKEN), where workers are missing after `timeouts.join` (LS-CLUSTER-JOIN), where two of them
/// cannot be connected (LS-CLUSTER-UNREACHABLE), where workers of several hosts have no secret (LS-CLUSTER-SECRET) or
/// are to share memory (LS-CLUSTER-SEVERAL-HOSTS), where the chief's name or the route to it cannot be found
/// (LS-CLUSTER-LOOK-UP, LS-CLUSTER-INTERFACE), where the system refuses memory or a socket (LS-CLUSTER-MEMORY,
/// LS-CLUSTER-SOCKET), where an engine's plug-in is missing or cannot work (LS-CLUSTER-ENGINE) or is to be used at a
/// public address (LS-CLUSTER-PUBLIC), and for a `cluster` that validate() refuses. A UsageError for an engine that
/// does not exist, for a time out of its bounds (LS-OPTION), and for a parameter server (LS-CLUSTER-NO-WORKER). A
/// PeerError where a worker fails when all are connected, while they settle how their bytes move.
///
/// What the sources of `cluster` say differently (ClusterSpec::disagreements) goes to the log, a line for each
/// sentence.
///
/// Call it once for a job, from any thread. Destroy the World on every worker when the work is done: a worker that ends
/// earlier ends the run of all others.
std::shared_ptr<World> join(const ClusterSpec& cluster, const JoinOptions& options = {});

}  // namespace lockstep
