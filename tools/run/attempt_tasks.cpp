// What Attempt does beside for a job with parameter servers, whose tasks do not all end together.
#include <fmt/format.h>
#include <sys/types.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include "lockstep/core/counted.h"
#include "tools/run/attempt.h"
#include "tools/run/task_rules.h"
#include "tools/run/worker/worker_environment.h"

namespace lockstep::tools {

namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

void Attempt::task_ended(std::size_t place, const WorkerEnd& end) {
  const TaskRole role = task_at(place).role;
  const TaskSituation situation{
      .was_asked = result_.end_signal != 0 || ended_as_asked_.has_value(),
      .has_ended = has_ended_,
      .has_chief = tasks_.has_chief,
      .has_other_worker = !tasks_.has_all_workers || has_other_worker(place),
      .restarts_left = tasks_.max_restarts - tasks_.restarts_before - result_.restarts_alone - count_pending()};
  const AfterEnd what = after_end(role, end, situation);
  const bool was_asked = result_.end_signal != 0 || stops_.has_come();
  // A worker may have been asked alone, because its host is taken away. The chief's code later says something else.
  if (role == TaskRole::kWorker && only_lost_another(end)) stops_.forget();
  if (what == AfterEnd::kStartAgain) return start_later(place, end);
  if (what == AfterEnd::kGoOnWithout) {
    say(fmt::format("{}; {}, and the others go on without it", text_of(end, settings_.command->front()),
                    is_restartable(end) ? "no restart is left" : "starting it again would not help"));
  }
  if (what == AfterEnd::kFailure && role == TaskRole::kChief && was_asked && !sent_kill_ && only_lost_another(end)) {
    ended_as_asked_ = end;  // it has saved and ended
    begin_end();
  } else if (what == AfterEnd::kFailure) {
    drop_pending(/*with_evaluator=*/true);
    take_first_failure(end);
  } else if (what == AfterEnd::kEnd) {
    begin_end();
  }
  if (!has_ended_ || result_.first_failure) return;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].alive && !is_spared(i)) return;
  }
  stop_at_.reset();  // who lives is waited for
  kill_at_.reset();
}

void Attempt::begin_end() {
  has_ended_ = true;
  drop_pending(/*with_evaluator=*/ended_as_asked_.has_value());
  if (tasks_.end_notice != nullptr) tasks_.end_notice->give();
  stop_after(grace_);
}

void Attempt::start_later(std::size_t place, const WorkerEnd& end) {
  Worker& task = workers_[place];
  // What the task has left behind must not disturb its successor. The group's number is still its own.
  kill(-task.process.pid, SIGKILL);
  const auto pause = pause_before(++starts_[place], tasks_.restart_pause);
  const int number = tasks_.restarts_before + result_.restarts_alone + count_pending() + 1;
  task.start_again_at = Clock::now() + pause;
  say(fmt::format("{}; starting it again alone in {} s, restart {} of {}", text_of(end, settings_.command->front()),
                  static_cast<double>(pause.count()) / 1000, number, tasks_.max_restarts));
}

void Attempt::start_what_is_due() {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& task = workers_[i];
    if (!task.start_again_at || Clock::now() < *task.start_again_at) continue;
    for (WorkerOutput* const output : {&task.output, &task.errors}) {
      while (output->read_some()) continue;
      output->close();
    }
    watchdog_.remove(task.process.pid);
    ++result_.restarts_alone;
    std::vector<std::string> environment = (*plans_)[i].environment;
    change_variable(environment, "LOCKSTEP_RESTART_COUNT",
                    fmt::to_string(tasks_.restarts_before + result_.restarts_alone));
    task.start_again_at.reset();
    try {
      task = start_one(i, environment);
    } catch (...) {
      clear_away();
      throw;
    }
    ++alive_;
  }
}

int Attempt::count_pending() const {
  return static_cast<int>(
      std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) { return w.start_again_at.has_value(); }));
}

std::optional<Clock::time_point> Attempt::next_start() const {
  std::optional<Clock::time_point> next;
  for (const Worker& task : workers_) {
    if (task.start_again_at && (!next || *task.start_again_at < *next)) next = task.start_again_at;
  }
  return next;
}

void Attempt::drop_pending(bool with_evaluator) {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (with_evaluator || task_at(i).role != TaskRole::kEvaluator) workers_[i].start_again_at.reset();
  }
}

bool Attempt::has_other_worker(std::size_t place) const {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (i == place || task_at(i).role != TaskRole::kWorker) continue;
    if (workers_[i].alive || workers_[i].start_again_at) return true;
  }
  return false;
}

bool Attempt::is_spared(std::size_t place) const {
  return has_ended_ && result_.end_signal == 0 && !ended_as_asked_ && !result_.first_failure &&
         task_at(place).role == TaskRole::kEvaluator;
}

std::string Attempt::who_is_left() const {
  if (!has_tasks()) return internal::counted(static_cast<int64_t>(alive_), "worker");
  constexpr std::size_t kShown = 8;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].alive && !is_spared(i)) names.push_back(name_of(task_at(i)));
  }
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kShown; ++i) {
    const bool is_last = i + 1 == names.size();
    text += (i == 0 ? "" : is_last ? " and " : ", ") + names[i];
  }
  return names.size() > kShown ? fmt::format("{} and {} more", text, names.size() - kShown) : text;
}

}  // namespace lockstep::tools
