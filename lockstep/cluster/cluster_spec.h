// Who the workers of a job are, and which of them this process is.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/cluster/secret.h"

namespace lockstep {

/// Which variable a fact of a ClusterSpec came from, such as "WORLD_SIZE=4". Messages show it. A text is empty where
/// the source did not say the fact, or derived it. The chief's port and the local worker are compared with another
/// source's only where both sources said them.
struct ClusterOrigins {
  std::string num_workers = {};
  std::string worker_index = {};
  std::string chief_host = {};
  std::string chief_port = {};
  std::string local_worker = {};
};

/// The tasks of a job, and which of them this process is, by TensorFlow's rules. `resolve_cluster()` makes one from the
/// environment; a program may also write one by hand. Any thread may read it.
struct ClusterSpec {
  /// The tasks' addresses, "host:port" or "[IPv6 address]:port", by job: "worker", "chief", "ps" or "evaluator". An
  /// address is empty where it is not known: many launchers tell only the chief's. Without any job it is one worker.
  std::map<std::string, std::vector<std::string>> jobs = {};
  /// The job that this process belongs to.
  std::string job = "worker";
  /// Which task of its job this process is, from 0.
  int64_t task = 0;
  /// Which of the workers on this host this process is, from 0. Strategies do not use it yet.
  int64_t local_worker = 0;
  /// Who said all this: "TF_CONFIG", "torchrun", "Slurm" and so on; "alone" where nobody did.
  std::string source = {};
  /// What other sources say differently, a sentence each.
  std::vector<std::string> disagreements = {};
  /// A name that all workers of this job and no other job have; empty where it is not known. At most 256 bytes.
  std::string job_id = {};
  /// What workers prove to each other that they know; empty where there is none.
  Secret secret = {};
  /// The network interface to use, such as "eth0"; empty: the one that the route to the chief takes.
  std::string interface_name = {};
  /// Whether nobody else can read or change what goes over the network between the workers' hosts. Then their data need
  /// not be encrypted; LOCKSTEP_TRUSTED_NETWORK=1.
  bool trusted_network = false;
  ClusterOrigins origins = {};

  /// How many workers train together: the tasks of "chief" and "worker". For an evaluator, which is alone, 1.
  int64_t num_workers() const;
  /// This process among the workers: the chief is 0, and with a chief task i of "worker" is i + 1. An evaluator is 0. A
  /// parameter server is none: a UsageError (LS-CLUSTER-NO-WORKER).
  int64_t worker_index() const;
  /// Whether this process writes what is written once: the task of "chief", where there is none task 0 of "worker", and
  /// an evaluator, which is its own chief.
  bool is_chief() const;
  /// Where the workers meet: the address of the chief, or of worker 0 where there is no chief. Empty where it is not
  /// known, and for an evaluator.
  std::string chief_address() const;
  /// The address of this process; empty where it is not known.
  std::string address() const;

  /// A ClusterError (LS-CLUSTER-SPEC) where the spec contradicts itself: a job of another name, several chiefs or
  /// evaluators, parameter servers without workers, a task that its job does not have, more than 65,536 tasks, an
  /// address that two tasks have. LS-CLUSTER-VALUE where an address or the job's id is malformed.
  void validate() const;
};

namespace internal::inline cluster {
/// The most workers, and the most tasks of all jobs.
constexpr int64_t kMostTasks = 65536;
}  // namespace internal::cluster

}  // namespace lockstep
