// Which environment variables a worker gets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::tools {

/// What a worker is told about itself and its job.
struct WorkerIdentity {
  int index = 0;
  int workers = 1;
  uint16_t port = 0;  // of the chief, on 127.0.0.1
  std::string job_id;
  std::string secret;
  int restart_count = 0;
  int max_restarts = 0;
};

/// Each "NAME=value" of `outer`, less those that describe another job or that this job sets itself, and then what this
/// job sets: LOCKSTEP_* and torchrun's variables. docs/launcher.md lists both.
std::vector<std::string> worker_environment(const std::vector<std::string>& outer, const WorkerIdentity& worker);

}  // namespace lockstep::tools
