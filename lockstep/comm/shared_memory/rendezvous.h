// How the workers of one host find each other, prove that they belong to one job, and get the memory that they share.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/shared_memory/local_socket.h"
#include "lockstep/comm/shared_memory/segment.h"

namespace lockstep::internal::inline comm {

/// One worker of a job, all of whose workers run on this host.
struct LocalJob {
  /// A text that all workers of this job have, and no other job on this host at the same time.
  std::string name;
  int64_t num_workers = 0;
  int64_t worker_index = 0;
  /// What workers prove to each other that they know; may be empty.
  std::string secret = {};
  /// What must be equal on all workers: one fact on each line, at most 8 KiB. A refusal shows the first line that
  /// differs.
  std::string must_match = {};
};

/// A worker on the other end of a connection, which breaks when that worker's process ends.
struct PeerConnection {
  int64_t worker = 0;
  int64_t process = 0;
  FileDescriptor connection;
};

/// What a meeting gives.
struct RendezvousResult {
  Segment segment;
  /// Worker 0 has all others; each other worker has worker 0.
  std::vector<PeerConnection> peers;
};

/// Meets all other workers of the job. Worker 0 waits for the others on a local socket without a file, whose name
/// follows from the job's name and secret; the others go there. Both sides refuse processes of other users. With a
/// secret, both prove that they know it, by HMAC-SHA256 over two fresh numbers; nobody sends it.
///
/// A ClusterError (LS-CLUSTER-JOIN) on every worker that has come where some are missing after `join`; it names them. A
/// worker that has another number of workers or another build than worker 0 gets a ClusterError (LS-CLUSTER-DIFFERS) at
/// once, and one whose index another process has LS-CLUSTER-TAKEN, while the others go on waiting. Every ten seconds a
/// line in the log says who is missing.
RendezvousResult rendezvous(const LocalJob& job, std::chrono::milliseconds join);

}  // namespace lockstep::internal::comm
