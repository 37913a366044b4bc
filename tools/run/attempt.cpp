#include "tools/run/attempt.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "tools/run/descendants.h"
#include "tools/run/process_state.h"

namespace lockstep::tools {

namespace {

using Clock = std::chrono::steady_clock;

/// Where the workers' two outputs begin in what is polled: after the signals and the two sinks.
constexpr std::size_t kFirstOutput = 3;

/// What poll() leaves out.
constexpr pollfd kNothing{-1, 0, 0};

pollfd to_write(const Sink& sink) { return sink.is_empty() ? kNothing : pollfd{sink.fd(), POLLOUT, 0}; }

pollfd to_read(const WorkerOutput& output) {
  return output.is_open() && output.has_room() ? pollfd{output.fd(), POLLIN, 0} : kNothing;
}

/// For poll(): until `when`, rounded up, or without end.
int milliseconds_until(const std::optional<Clock::time_point>& when) {
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

Attempt::Attempt(const StartSettings& settings, SignalQueue& signals, Watchdog& watchdog, Outputs outputs,
                 std::chrono::milliseconds grace)
    : settings_(settings), signals_(signals), watchdog_(watchdog), outputs_(outputs), grace_(grace) {}

AttemptResult Attempt::run(const std::vector<WorkerPlan>& plans) {
  start(plans);
  while (alive_ > 0) wait();
  clear_away();
  drain();
  if (result_.first_failure) {
    result_.last_errors = last_[static_cast<std::size_t>(result_.first_failure->worker - plans.front().index)].lines();
  }
  return std::move(result_);
}

void Attempt::start(const std::vector<WorkerPlan>& plans) {
  last_.resize(plans.size());
  workers_.reserve(plans.size());
  try {
    for (std::size_t i = 0; i < plans.size(); ++i) {
      WorkerProcess process = start_worker(plans[i].index, settings_, plans[i].environment, plans[i].cores);
      watchdog_.add(process.pid);
      internal::FileDescriptor output = std::move(process.output);
      internal::FileDescriptor errors = std::move(process.errors);
      workers_.push_back({plans[i].index, std::move(process),
                          WorkerOutput(std::move(output), plans[i].prefix, *outputs_.output, nullptr),
                          WorkerOutput(std::move(errors), plans[i].prefix, *outputs_.errors, &last_[i])});
      ++alive_;
    }
  } catch (...) {
    clear_away();
    throw;
  }
}

void Attempt::wait() {
  polled_.clear();
  polled_.push_back({signals_.fd(), POLLIN, 0});
  polled_.push_back(to_write(*outputs_.output));
  polled_.push_back(to_write(*outputs_.errors));
  for (const Worker& worker : workers_) {
    polled_.push_back(to_read(worker.output));
    polled_.push_back(to_read(worker.errors));
  }
  const int ready = poll(polled_.data(), polled_.size(), milliseconds_until(kill_at_));
  if (ready < 0) return;
  handle_signals();
  read_outputs();
  outputs_.output->flush();
  outputs_.errors->flush();
  if (kill_at_ && Clock::now() >= *kill_at_) kill_all();
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
  const WorkerEnd end = end_of(worker.index, worker.process, status);
  result_.ends.push_back(end);
  worker.process.start_failure.close();
  // An empty group's number may come to mean another group.
  if (kill(-worker.process.pid, 0) != 0) watchdog_.remove(worker.process.pid);
  if (!end.failed()) return;
  if (!result_.first_failure) {
    result_.first_failure = end;
    result_.was_asked_first = result_.end_signal != 0;
    result_.was_killed = sent_kill_;
    result_.stopped = static_cast<int>(alive_);
    for (Worker& other : workers_) other.was_exiting = other.alive && process_state(other.process.pid).is_exiting;
    if (alive_ == 0 || sent_kill_) return;
    say(fmt::format("{}; stopping {} other{}", text_of(end, settings_.command->front()), alive_,
                    alive_ == 1 ? "" : "s"));
    begin_grace();
    return;
  }
  if (worker.was_exiting && was_killed_from_outside(end) && !was_killed_from_outside(*result_.first_failure) &&
      !result_.was_asked_first) {
    // Others see a dying worker's connections close before the launcher sees its end, and may end before it.
    result_.first_failure = end;
    ++result_.failed_later;
    return;
  }
  if (only_lost_another(*result_.first_failure) && says_its_own_error(end) && !result_.was_asked_first) {
    // Who loses a peer may end before the peer does.
    result_.first_failure = end;
    ++result_.failed_later;
    return;
  }
  const bool by_signal = end.kind == WorkerEnd::Kind::kSignalled;
  const bool was_stopped =
      by_signal && (end.value == SIGTERM || end.value == SIGKILL || end.value == result_.end_signal);
  if (!was_stopped) ++result_.failed_later;
}

void Attempt::end_job(int signal) {
  if (result_.end_signal != 0) {
    result_.was_forced = true;
    return kill_all();
  }
  result_.end_signal = signal;
  if (alive_ > 0) say(fmt::format("{} goes to all workers; another one kills them", signal_text(signal)));
  send_to_all(signal);
}

void Attempt::send_to_all(int signal) {
  // A worker that was not reaped yet keeps its number, so that no strange group can be meant.
  for (const Worker& worker : workers_) {
    if (worker.alive) kill(-worker.process.pid, signal);
  }
}

void Attempt::begin_grace() {
  if (result_.end_signal == 0) send_to_all(SIGTERM);  // otherwise they were asked already
  kill_at_ = Clock::now() + grace_;
}

void Attempt::kill_all() {
  send_to_all(SIGKILL);
  sent_kill_ = true;
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
