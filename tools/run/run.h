// `lockstep run`: starts the workers of a job that this machine has, watches them, and ends them together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::tools {

struct RunOptions {
  /// On this machine; with `hosts`, on each host whose line does not say how many.
  int workers = 0;
  /// The program and its arguments, as they were typed.
  std::vector<std::string> command;
  int max_restarts = 0;
  /// Seconds before the first restart; each further pause is twice as long, up to 30 s.
  double restart_pause = 1;
  /// Seconds between SIGTERM and SIGKILL.
  double grace = 5;
  /// The chief's port; 0 takes a free one at each start, and kPortOfHosts with `hosts`.
  uint16_t port = 0;
  /// Empty: a random one; with `hosts` one that follows from these and the port.
  std::string job_id;
  /// The path of a hosts file (hosts_file.h); empty: all workers are on this machine.
  std::string hosts;
  /// Which of its hosts this machine is, from 0; -1: found by name and address.
  int host_index = -1;
  /// Where the report goes (run_report.h); empty: nowhere.
  std::string json;
  bool pin = true;
  bool prefix = true;
  /// With servers the job has a chief too, and `workers` are those of all hosts.
  int servers = 0;
  bool has_evaluator = false;
};

/// Where worker 0 of several hosts is met: all launchers must know the port. With servers each task of a host has a
/// port of its own, from this one on.
inline constexpr uint16_t kPortOfHosts = 29600;

/// Runs the workers of this machine to their end and gives the exit code: 0 where every one exited with 0, otherwise
/// that of the worker that failed first; with servers the chief's, unless the job ended because of another task, whose
/// it is then. Throws UsageError (LS-FLAG, LS-HOSTS, LS-HOST-INDEX), DataError
/// where the report's file cannot be written (LS-FILE; at the end a line on standard error), and ClusterError where
/// the system refuses a process, a pipe or a port (LS-LAUNCH) or several hosts have no secret (LS-CLUSTER-SECRET). No
/// process of the job is left when it returns or throws. Call it on the main thread of a process that has no other
/// children.
int run(const RunOptions& options);

}  // namespace lockstep::tools
