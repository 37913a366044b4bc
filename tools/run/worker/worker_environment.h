// Which environment variables a worker gets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/run/host_share.h"

namespace lockstep::tools {

/// What a worker is told about itself and its job.
struct WorkerIdentity {
  HostShare share;
  int local = 0;  // which of the share's workers this one is
  std::string chief_host = "127.0.0.1";
  uint16_t port = 0;  // of the chief
  std::string job_id;
  /// Empty: the workers have the secret and the network interface that `outer` names.
  std::string secret;
  std::string stop_notices;  // StopNotices::address()
  int restart_count = 0;
  int max_restarts = 0;
};

/// Each "NAME=value" of `outer`, less those that describe another job or that this job sets itself, and then what this
/// job sets: LOCKSTEP_* and torchrun's variables. docs/launcher.md lists both.
std::vector<std::string> worker_environment(const std::vector<std::string>& outer, const WorkerIdentity& worker);

/// What a task of a job with parameter servers is told.
struct TaskIdentity {
  std::string tf_config;
  std::string job_id;
  std::string secret;           // as of WorkerIdentity
  std::string stop_notices;     // StopNotices::address()
  std::string end_notice = {};  // EndNotice::address(); of the evaluator alone
  /// How often tasks of the job were started again before, alone or together.
  int restart_count = 0;
  /// How often all were started again together.
  int epoch = 0;
};

/// The same for such a task: what this job sets are LOCKSTEP_* and TF_CONFIG.
std::vector<std::string> task_environment(const std::vector<std::string>& outer, const TaskIdentity& task);

/// Sets a variable that `environment` has.
void change_variable(std::vector<std::string>& environment, const std::string& name, const std::string& value);

}  // namespace lockstep::tools
