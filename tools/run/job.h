// What all starts of a job have in common, as the flags and the hosts file say it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/run/host_share.h"
#include "tools/run/run.h"
#include "tools/run/tasks.h"

namespace lockstep::tools {

/// Where a numbered task runs.
struct TaskPlace {
  std::string host;
  int local = 0;  // which of the tasks of its host it is
};

struct Job {
  HostShare share;  // with parameter servers: of the numbered tasks
  std::string chief_host;
  uint16_t port = 0;  // 0: a free one at each start
  std::string id;     // empty: a random one
  /// Whether the workers have the secret of the launcher's own environment, and not a new one at each start.
  bool has_own_secret = false;
  /// With parameter servers: the tasks, and where each numbered one runs.
  std::optional<TaskCounts> tasks = std::nullopt;
  std::vector<TaskPlace> places = {};
};

/// The job of these options. With a hosts file it reads this, finds this host in it, which takes half a minute at most,
/// and sees to it that several hosts have a secret. Throws what run() throws.
Job job_of(const RunOptions& options);

}  // namespace lockstep::tools
