// What each process of a start is started with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/run/attempt.h"
#include "tools/run/job.h"
#include "tools/run/run.h"

namespace lockstep::tools {

/// What one start of a job has of its own. Where the job is this machine's alone, secret and ports are new each time,
/// so that nothing that was left of an earlier start can join.
struct StartFacts {
  int restarts = 0;  // of the job, before this start
  int epoch = 0;     // how often all were started before
  /// The chief's port; with parameter servers that of each numbered task on its host.
  std::vector<uint16_t> ports = {};
  std::string secret = {};        // empty: the launcher's own
  std::string stop_notices = {};  // StopNotices::address()
  std::string end_notice = {};    // EndNotice::address(); empty where there is no evaluator
};

/// How many ports a start needs.
int ports_of(const Job& job);

/// A plan for each process of this launcher.
std::vector<WorkerPlan> plans_of(const RunOptions& options, const Job& job, const StartFacts& facts);

/// What Attempt needs to know of the tasks among them.
TaskSettings settings_of(const RunOptions& options, const Job& job, int restarts, EndNotice* end_notice);

}  // namespace lockstep::tools
