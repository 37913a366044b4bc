#include "tools/run/attempt.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <initializer_list>
#include <utility>

#include "lockstep/core/counted.h"
#include "tools/run/worker/descendants.h"
#include "tools/run/worker/process_state.h"

namespace lockstep::tools {

namespace {

using Clock = std::chrono::steady_clock;

/// Where the workers' two outputs begin in what is polled: after the signals, the notices and the two sinks.
constexpr std::size_t kFirstOutput = 4;

/// What poll() leaves out.
constexpr pollfd kNothing{-1, 0, 0};

pollfd to_write(const Sink& sink) { return sink.is_empty() ? kNothing : pollfd{sink.fd(), POLLOUT, 0}; }

pollfd to_read(const WorkerOutput& output) {
  return output.is_open() && output.has_room() ? pollfd{output.fd(), POLLIN, 0} : kNothing;
}

/// How long others have at most to end by themselves after a worker's failure.
constexpr std::chrono::milliseconds kToEndByThemselves = std::chrono::seconds(2);

double seconds_of(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1000; }

/// For poll(): until the first of them, rounded up, or without end.
int milliseconds_until(std::initializer_list<std::optional<Clock::time_point>> times) {
  std::optional<Clock::time_point> when;
  for (const auto& one : times) {
    if (one && (!when || *one < *when)) when = one;
  }
  if (!when) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*when - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1000000000));
}

}  // namespace

int flush(Outputs outputs, SignalQueue& signals, bool is_hurried) {
  int signal = 0;
  while (signal == 0) {
    outputs.output->flush();
    outputs.errors->flush();
    if (outputs.output->is_empty() && outputs.errors->is_empty()) return 0;
    pollfd polled[] = {{signals.fd(), POLLIN, 0}, to_write(*outputs.output), to_write(*outputs.errors)};
    if (poll(polled, std::size(polled), is_hurried ? 1000 : -1) == 0) break;
    for (SignalQueue::ReceivedSignal received; signals.next(received);) {
      if (asks_to_end(received.signal)) signal = received.signal;
    }
  }
  outputs.output->give_up();
  outputs.errors->give_up();
  return signal;
}

Attempt::Attempt(const StartSettings& settings, SignalQueue& signals, StopNotices& stops, Watchdog& watchdog,
                 Outputs outputs, std::chrono::milliseconds grace, TaskSettings tasks)
    : settings_(settings),
      signals_(signals),
      stops_(stops),
      watchdog_(watchdog),
      outputs_(outputs),
      grace_(grace),
      tasks_(tasks) {}

AttemptResult Attempt::run(const std::vector<WorkerPlan>& plans) {
  plans_ = &plans;
  start();
  while (alive_ > 0 || next_start()) wait();
  if (!result_.first_failure && ended_as_asked_) {
    result_.first_failure = ended_as_asked_;
    result_.was_asked_first = result_.end_signal != 0;
    result_.was_worker_asked = !result_.was_asked_first;
  }
  clear_away();
  drain();
  if (result_.first_failure) {
    result_.last_errors = last_[static_cast<std::size_t>(result_.first_failure->worker - plans.front().index)].lines();
  }
  return std::move(result_);
}

void Attempt::start() {
  last_.resize(plans_->size());
  starts_.resize(plans_->size());
  workers_.reserve(plans_->size());
  try {
    for (std::size_t i = 0; i < plans_->size(); ++i) {
      workers_.push_back(start_one(i, (*plans_)[i].environment));
      ++alive_;
    }
  } catch (...) {
    clear_away();
    throw;
  }
}

Attempt::Worker Attempt::start_one(std::size_t place, const std::vector<std::string>& environment) {
  const WorkerPlan& plan = (*plans_)[place];
  const bool is_peer = plan.task.role == TaskRole::kPeer;
  const bool is_told = plan.task.role == TaskRole::kEvaluator && tasks_.end_notice != nullptr;
  WorkerProcess process = start_worker({.name = is_peer ? fmt::format("worker {}", plan.index) : name_of(plan.task),
                                        .reads_input = is_peer ? plan.index == 0 : plan.task.role == TaskRole::kChief,
                                        .environment = &environment,
                                        .cores = &plan.cores,
                                        .end_notice = is_told ? tasks_.end_notice->receiver() : -1},
                                       settings_);
  watchdog_.add(process.pid);
  internal::FileDescriptor output = std::move(process.output);
  internal::FileDescriptor errors = std::move(process.errors);
  return {plan.index, std::move(process), WorkerOutput(std::move(output), plan.prefix, *outputs_.output, nullptr),
          WorkerOutput(std::move(errors), plan.prefix, *outputs_.errors, &last_[place])};
}

void Attempt::wait() {
  polled_.clear();
  polled_.push_back({signals_.fd(), POLLIN, 0});
  polled_.push_back({stops_.fd(), POLLIN, 0});
  polled_.push_back(to_write(*outputs_.output));
  polled_.push_back(to_write(*outputs_.errors));
  for (const Worker& worker : workers_) {
    polled_.push_back(to_read(worker.output));
    polled_.push_back(to_read(worker.errors));
  }
  const int ready = poll(polled_.data(), polled_.size(), milliseconds_until({stop_at_, kill_at_, next_start()}));
  if (ready < 0) return;
  stops_.has_come();
  handle_signals();
  read_outputs();
  outputs_.output->flush();
  outputs_.errors->flush();
  start_what_is_due();
  if (alive_ == 0) return;
  if (stop_at_ && Clock::now() >= *stop_at_) {
    if (has_ended_ && !result_.first_failure) {
      say(fmt::format("{} did not end with the chief, within --grace, {} s: SIGTERM", who_is_left(),
                      seconds_of(grace_)));
    }
    begin_grace();
  }
  if (kill_at_ && Clock::now() >= *kill_at_) {
    say(fmt::format("{} did not end within --grace, {} s: SIGKILL", who_is_left(), seconds_of(grace_)));
    kill_all();
  }
}

void Attempt::read_outputs() {
  // A full sink ends a round early, so that each round begins with another worker.
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const std::size_t index = (first_to_read_ + i) % workers_.size();
    Worker& worker = workers_[index];
    const pollfd* const polled = &polled_[kFirstOutput + 2 * index];
    if (polled[0].revents != 0 && worker.output.has_room()) worker.output.read_some();
    if (polled[1].revents != 0 && worker.errors.has_room()) worker.errors.read_some();
  }
  first_to_read_ = (first_to_read_ + 1) % workers_.size();
}

void Attempt::handle_signals() {
  for (SignalQueue::ReceivedSignal received; signals_.next(received);) handle(received);
}

void Attempt::handle(const SignalQueue::ReceivedSignal& received) {
  if (received.signal == SIGCHLD) {
    reap(received.child);  // the first to end is reaped first
    reap(-1);
  } else if (asks_to_end(received.signal)) {
    end_job(received.signal);
  } else {
    send_to_all(received.signal);
  }
}

void Attempt::reap(pid_t pid) {
  int status = 0;
  for (pid_t found; (found = waitpid(pid, &status, WNOHANG)) > 0;) {
    const auto worker = std::find_if(workers_.begin(), workers_.end(),
                                     [&](const Worker& w) { return w.alive && w.process.pid == found; });
    if (worker != workers_.end()) ended(static_cast<std::size_t>(worker - workers_.begin()), status);
  }
}

void Attempt::ended(std::size_t place, int status) {
  Worker& worker = workers_[place];
  worker.alive = false;
  --alive_;
  WorkerEnd end = end_of(worker.index, worker.process, status);
  if (has_tasks()) end.task = name_of(task_at(place));
  result_.ends.push_back(end);
  worker.process.start_failure.close();
  // An empty group's number may come to mean another group.
  if (kill(-worker.process.pid, 0) != 0) watchdog_.remove(worker.process.pid);
  if (has_tasks() && !result_.first_failure) return task_ended(place, end);
  if (!end.failed()) return;
  // What a worker has told before it ended is there by now.
  const bool was_asked = result_.end_signal != 0 || stops_.has_come();
  if (!result_.first_failure && was_asked && !sent_kill_ && only_lost_another(end)) {
    // It has saved and ended. The others may still be saving, and end in their own time as well.
    if (!ended_as_asked_) ended_as_asked_ = end;
    if (alive_ > 0) {
      say(fmt::format(
          "{}, as {}; {} may go on", text_of(end, settings_.command->front()),
          result_.end_signal != 0 ? signal_text(result_.end_signal) + " asked it to" : "a worker was asked to stop",
          internal::counted(static_cast<int64_t>(alive_), "other")));
    }
    return;
  }
  if (!result_.first_failure) return take_first_failure(end);
  if (is_nearer_to_the_cause(worker, end)) {
    result_.first_failure = end;
    ++result_.failed_later;
    if (stop_at_) stop_after(std::min(grace_, kToEndByThemselves));
    return;
  }
  const bool by_signal = end.kind == WorkerEnd::Kind::kSignalled;
  const bool was_stopped =
      by_signal && (end.value == SIGTERM || end.value == SIGKILL || end.value == result_.end_signal);
  if (!was_stopped) ++result_.failed_later;
}

void Attempt::take_first_failure(const WorkerEnd& end) {
  result_.first_failure = end;
  result_.was_asked_first = result_.end_signal != 0;
  result_.was_killed = sent_kill_;
  result_.stopped = static_cast<int>(alive_);
  for (Worker& other : workers_) other.was_exiting = other.alive && process_state(other.process.pid).is_exiting;
  if (alive_ == 0 || sent_kill_) return;
  const bool has_run = end.kind == WorkerEnd::Kind::kExited || end.kind == WorkerEnd::Kind::kSignalled;
  if (result_.was_asked_first || !has_run) {
    begin_grace();
    say(fmt::format("{}; stopping {}, which have --grace, {} s", text_of(end, settings_.command->front()),
                    internal::counted(static_cast<int64_t>(alive_), "other"), seconds_of(grace_)));
    return;
  }
  // A worker that lost another one has ended before it: that one has the cause to tell. And after any other failure,
  // the others are about to say where they were.
  const auto time = only_lost_another(end) ? grace_ : std::min(grace_, kToEndByThemselves);
  stop_after(time);
  say(fmt::format("{}; {} may end by themselves, and get SIGTERM after {} s", text_of(end, settings_.command->front()),
                  internal::counted(static_cast<int64_t>(alive_), "other"), seconds_of(time)));
}

bool Attempt::is_nearer_to_the_cause(const Worker& worker, const WorkerEnd& end) const {
  const WorkerEnd& first = *result_.first_failure;
  if (result_.was_asked_first) return false;
  // Others see a dying worker's connections close before the launcher sees its end, and may end before it.
  if (worker.was_exiting && was_killed_from_outside(end) && !was_killed_from_outside(first)) return true;
  // Who loses a peer may end before the peer does. What was told to stop no longer tells what it would have ended with,
  // but by an error of its own.
  if (!only_lost_another(first) || only_lost_another(end)) return false;
  return (!sent_stop_ && result_.end_signal == 0) || says_its_own_error(end);
}

void Attempt::stop_after(std::chrono::milliseconds time) {
  const Clock::time_point when = Clock::now() + time;
  if (!stop_at_ || when < *stop_at_) stop_at_ = when;
}

void Attempt::end_job(int signal) {
  if (result_.end_signal != 0) {
    result_.was_forced = true;
    return kill_all();
  }
  result_.end_signal = signal;
  drop_pending(/*with_evaluator=*/true);
  if (alive_ > 0)
    say(fmt::format("{} goes to all {}; another one kills them", signal_text(signal),
                    has_tasks() ? "tasks" : "workers"));
  send_to_all(signal);
  if (!result_.first_failure || !stop_at_) return;
  // They were to be stopped soon in any case.
  stop_at_.reset();
  kill_at_ = Clock::now() + grace_;
}

void Attempt::send_to_all(int signal) {
  // A worker that was not reaped yet keeps its number, so that no strange group can be meant.
  for (const Worker& worker : workers_) {
    if (worker.alive) kill(-worker.process.pid, signal);
  }
}

void Attempt::send_to_those_left(int signal) {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].alive && !is_spared(i)) kill(-workers_[i].process.pid, signal);
  }
}

void Attempt::begin_grace() {
  if (result_.end_signal == 0) send_to_those_left(SIGTERM);  // otherwise they were asked already
  sent_stop_ = true;
  stop_at_.reset();
  kill_at_ = Clock::now() + grace_;
}

void Attempt::kill_all() {
  send_to_those_left(SIGKILL);
  sent_kill_ = true;
  stop_at_.reset();
  kill_at_.reset();
}

void Attempt::clear_away() {
  std::vector<int> meanwhile;
  result_.left = kill_descendants(signals_, watchdog_.pid(), meanwhile);
  for (Worker& worker : workers_) {
    worker.alive = false;
    watchdog_.remove(worker.process.pid);
  }
  for (const int signal : meanwhile) handle({signal, 0});
}

void Attempt::drain() {
  // All writers are dead, or out of reach: what is in the pipes is all that will come.
  for (Worker& worker : workers_) {
    for (WorkerOutput* const output : {&worker.output, &worker.errors}) {
      while (output->read_some()) {
        if (output->has_room()) continue;
        const int signal = flush(outputs_, signals_, result_.was_forced);
        if (signal != 0 && result_.end_signal == 0) result_.end_signal = signal;
      }
      output->close();
    }
  }
}

void Attempt::say(const std::string& line) { outputs_.errors->add(fmt::format("lockstep run: {}\n", line)); }

}  // namespace lockstep::tools
