#include "tools/run/task_rules.h"

namespace lockstep::tools {

AfterEnd after_end(TaskRole role, const WorkerEnd& end, const TaskSituation& situation) {
  if (role == TaskRole::kChief) return end.failed() ? AfterEnd::kFailure : AfterEnd::kEnd;
  if (!end.failed()) {
    // Servers serve until the job ends, so theirs is a sign of it where the chief is on another host.
    const bool is_sign = role == TaskRole::kServer && !situation.has_chief && !situation.has_ended;
    return is_sign ? AfterEnd::kEnd : AfterEnd::kNothing;
  }
  if (role == TaskRole::kEvaluator) {
    if (situation.was_asked) return AfterEnd::kNothing;
    const bool may_help = situation.restarts_left > 0 && is_restartable(end);
    return may_help ? AfterEnd::kStartAgain : AfterEnd::kGoOnWithout;
  }
  if (situation.has_ended) return AfterEnd::kNothing;
  if (situation.was_asked) return only_lost_another(end) ? AfterEnd::kNothing : AfterEnd::kFailure;
  if (role == TaskRole::kServer || !is_restartable(end)) return AfterEnd::kFailure;
  if (situation.restarts_left > 0) return AfterEnd::kStartAgain;
  return situation.has_other_worker ? AfterEnd::kGoOnWithout : AfterEnd::kFailure;
}

}  // namespace lockstep::tools
