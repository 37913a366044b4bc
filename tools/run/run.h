// `lockstep run`: starts the workers of a job on this machine, watches them, and ends them together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::tools {

struct RunOptions {
  int workers = 0;
  /// The program and its arguments, as they were typed.
  std::vector<std::string> command;
  int max_restarts = 0;
  /// Seconds before the first restart; each further pause is twice as long, up to 30 s.
  double restart_pause = 1;
  /// Seconds between SIGTERM and SIGKILL.
  double grace = 5;
  /// The chief's port; 0 takes a free one at each start.
  uint16_t port = 0;
  /// Empty: a random one.
  std::string job_id;
  bool pin = true;
  bool prefix = true;
};

/// Runs the job to its end and gives the exit code: 0 where every worker exited with 0, otherwise that of the worker
/// that failed first. Throws UsageError (LS-FLAG), and ClusterError (LS-LAUNCH) where the system refuses a process, a
/// pipe or a port. No process of the job is left when it returns or throws. Call it on the main thread of a process
/// that has no other children.
int run(const RunOptions& options);

}  // namespace lockstep::tools
