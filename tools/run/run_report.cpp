#include "tools/run/run_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace lockstep::tools {

namespace {

using nlohmann::ordered_json;

const char* name_of(WorkerEnd::Kind kind) {
  switch (kind) {
    case WorkerEnd::Kind::kExited: return "exited";
    case WorkerEnd::Kind::kSignalled: return "signalled";
    case WorkerEnd::Kind::kNotStarted: return "not started";
    case WorkerEnd::Kind::kNotPinned: return "not pinned";
  }
  return "";
}

ordered_json json_of(const WorkerEnd& end) {
  const bool is_task = !end.task.empty();
  return {{is_task ? "task" : "worker", is_task ? ordered_json(end.task) : ordered_json(end.worker)},
          {"pid", end.pid},
          {"end", name_of(end.kind)},
          {"exit_code", exit_code_of(end)},
          {"signal", end.kind == WorkerEnd::Kind::kSignalled ? ordered_json(signal_text(end.value)) : ordered_json()},
          {"seconds", end.seconds}};
}

ordered_json json_of(const AttemptReport& attempt, const std::string& program) {
  const AttemptResult& result = attempt.result;
  ordered_json failure;
  if (result.first_failure) {
    failure = json_of(*result.first_failure);
    failure["message"] = text_of(*result.first_failure, program);
    failure["cause"] = attempt.cause;
    failure["last_errors"] = result.last_errors;
  }
  std::vector<WorkerEnd> ends = result.ends;
  // One that was started again stands there for each time.
  std::stable_sort(ends.begin(), ends.end(),
                   [](const WorkerEnd& a, const WorkerEnd& b) { return a.worker < b.worker; });
  ordered_json workers = ordered_json::array();
  for (const WorkerEnd& end : ends) workers.push_back(json_of(end));
  return {{"seconds", attempt.seconds},
          {"signal", result.end_signal == 0 ? ordered_json() : ordered_json(signal_text(result.end_signal))},
          {"first_failure", failure},
          {"stopped", result.stopped},
          {"restarted_alone", result.restarts_alone},
          {"workers", workers}};
}

}  // namespace

std::string json_of(const RunReport& report, const RunOptions& options, const Job& job) {
  ordered_json attempts = ordered_json::array();
  std::size_t restarts = report.attempts.size() - 1;
  for (const AttemptReport& attempt : report.attempts) {
    attempts.push_back(json_of(attempt, options.command.front()));
    restarts += static_cast<std::size_t>(attempt.result.restarts_alone);
  }
  const ordered_json json{{"job_id", job.id},
                          {"command", options.command},
                          {"host", job.share.host},
                          {"num_workers", job.tasks ? job.tasks->workers : job.share.num_workers},
                          {"servers", job.tasks ? job.tasks->servers : 0},
                          {"exit_code", report.exit_code},
                          {"seconds", report.seconds},
                          {"restarts", restarts},
                          {"max_restarts", options.max_restarts},
                          {"attempts", attempts}};
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::tools
