// The tasks of a job with parameter servers: their names, their numbers, and what each is told about all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/run/hosts_file.h"

namespace lockstep::tools {

/// What a process that the launcher starts is for the job.
enum class TaskRole : uint8_t {
  kPeer,  // one of N workers that train together: none does without the others
  kChief,
  kWorker,
  kServer,
  kEvaluator,
};

/// A task of a job: its role, and its number among those of the role.
struct Task {
  TaskRole role = TaskRole::kPeer;
  int index = 0;
};

/// "chief", "worker 1", "ps 0", "evaluator"
std::string name_of(const Task& task);

/// How many tasks of each role a job has. With servers there is one chief; without, there are peers alone.
struct TaskCounts {
  int workers = 0;
  int servers = 0;
  bool has_evaluator = false;

  /// Those that are numbered: the chief is 0, then come the workers, then the servers. The evaluator has no number.
  int numbered() const { return 1 + workers + servers; }
};

/// The task of this number.
Task task_at(const TaskCounts& counts, int number);

/// Which of the numbered tasks are on one host: `count` of them from `first` on.
struct TaskBlock {
  int first = 0;
  int count = 0;
};

/// Deals the numbered tasks to hosts in blocks, in their order: a host whose line has slots gets as many, the others
/// share what is left, in blocks that differ by at most one, the larger ones first. A UsageError (LS-HOSTS) where the
/// slots do not add up to the tasks, and where a host would get none.
std::vector<TaskBlock> deal_tasks(const TaskCounts& counts, const std::vector<HostLine>& hosts);

/// The text of TF_CONFIG for one task of the job, whose numbered tasks have these addresses. It lists no evaluator.
std::string tf_config_of(const TaskCounts& counts, const std::vector<std::string>& addresses, const Task& task);

}  // namespace lockstep::tools
