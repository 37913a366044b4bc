// What follows for a job with parameter servers when one of its tasks has ended.
#pragma once

#include <cstdint>

#include "tools/run/tasks.h"
#include "tools/run/worker/worker_end.h"

namespace lockstep::tools {

/// What the launcher knows when a task ends.
struct TaskSituation {
  bool was_asked = false;        // the launcher was asked to end the job
  bool has_ended = false;        // the chief has ended: so does the job
  bool has_chief = true;         // the launcher has started it; with several hosts another one may have
  bool has_other_worker = true;  // one lives, or will be started again, or may be on another host
  int restarts_left = 0;         // of the job
};

enum class AfterEnd : uint8_t {
  kNothing,      // the others go on
  kStartAgain,   // this task alone, after a pause; the others go on
  kGoOnWithout,  // the others go on, and no restart is left
  kEnd,          // the job has ended: the others end by themselves, and are stopped after the grace
  kFailure,      // the job has failed: all are stopped, and started again where that may help
};

/// The chief's end is the job's. A server that fails takes the job with it, because what it held is gone; a worker or
/// the evaluator does not, unless nothing could go on without it, or its exit code says that starting it again would
/// not help.
AfterEnd after_end(TaskRole role, const WorkerEnd& end, const TaskSituation& situation);

}  // namespace lockstep::tools
