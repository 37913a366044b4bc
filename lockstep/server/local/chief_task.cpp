#include "lockstep/server/local/chief_task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "lockstep/core/error.h"
#include "lockstep/core/ids.h"
#include "lockstep/core/log.h"
#include "lockstep/server/local/step_payloads.h"
#include "lockstep/server/step_errors.h"

namespace lockstep::internal::inline server {

ChiefTask::ChiefTask(const ChiefOptions& options, const ChiefCut& begin, std::shared_ptr<const StrategyGate> gate,
                     TaskMail mail, uint64_t epoch)
    : gate_(std::move(gate)),
      mail_(std::move(mail)),
      in_rounds_(options.staleness == 0),
      machine_(options, epoch, begin),
      writes_(gate_->writes()) {}

void ChiefTask::replay(const RunEvents& run, std::vector<std::string> functions, int32_t workers,
                       std::optional<int64_t> until) {
  replay_ =
      std::make_unique<RunReplay>(run, std::move(functions), workers, machine_.position(),
                                  RunReplay::Mail{.to_worker = mail_.to_worker, .to_server = mail_.to_server},
                                  [](const Payload& payload) { return message_of(as<StepFailure>(payload).error); });
  machine_.follow(*replay_);
  until_ = until;
}

void ChiefTask::require_may_wait(const char* call) const {
  refuse_in_scheduled_step(call);
  gate_->require_not_inside(call);
}

template <class Fn>
void ChiefTask::guard(const Fn& fn) {
  try {
    fn();
  } catch (...) {
    fail_now(std::current_exception());
  }
}

template <class Fn>
void ChiefTask::work(const Fn& fn) {
  ChiefOutput out;
  fn(out);
  machine_.collect(out);
  while (true) {
    const auto summed = std::find_if(out.events.begin(), out.events.end(), [](const ChiefEvent& event) {
      return std::holds_alternative<RoundSummed>(event);
    });
    if (summed == out.events.end()) break;
    const RoundSummed round = std::get<RoundSummed>(*summed);
    out.events.erase(summed);
    machine_.decide_round(round.round, mail_.coefficient(round), true, out);
    machine_.collect(out);
  }
  if (!replay_) return act(out);
  guard([&] { act(out); });
}

void ChiefTask::fail_now(std::exception_ptr error) {
  if (!failure_) failure_ = std::move(error);
  recorder_.reset();
  if (replay_) replay_->let_go();
  decided_.notify_all();
}

void ChiefTask::follow() {
  if (!replay_) return;
  guard([&] {
    for (bool goes_on = true; goes_on && !failure_;) {
      work([&](ChiefOutput& out) {
        goes_on = replay_->take_next(machine_, out);
        if (const auto step = replay_->last_reported()) keep_ready_result(*step);
      });
    }
  });
  decided_.notify_all();
}

void ChiefTask::stop(LogLevel level, const std::string& why) {
  has_stopped_ = true;
  log(level, "replay: " + why);
  fail_now(std::make_exception_ptr(CancelledError(
      "LS-REPLAY-STOP", why, "let this exception leave the function that coordinate() was given: it returns then")));
}

template <class Fn>
void ChiefTask::wait(std::unique_lock<std::mutex>& lock, const Fn& is_so, WaitsFor what) {
  if (!replay_) return decided_.wait(lock, is_so);
  constexpr auto kPatience = std::chrono::seconds(30);
  while (!failure_ && !is_so()) {
    if (what == WaitsFor::kDecision) require_program_goes_on(false);
    if (failure_ || decided_.wait_for(lock, kPatience) == std::cv_status::no_timeout) continue;
    if (!is_so()) require_program_goes_on(true);
  }
}

/// A thread that schedules all steps by itself, and waits here, does nothing else: so nothing may need that.
void ChiefTask::require_program_goes_on(bool has_waited_long) {
  const bool is_alone =
      schedulers_.empty() || (schedulers_.size() == 1 && schedulers_.contains(std::this_thread::get_id()));
  if (!is_alone && !has_waited_long) return;
  if (has_waited_long && replay_->passes_over_read()) {
    log(LogLevel::kWarning, "replay: the program has not read values where it had in the recorded run");
    decided_.notify_all();
    return;
  }
  std::string missing = replay_->waits_for_program();
  if (replay_->is_at_end()) {
    if (!replay_->is_whole())
      return stop(LogLevel::kWarning, "the record ends here, because its run was cut off; the replay stops");
    missing = "the run ended";
  }
  if (missing.empty()) return;
  fail_now(std::make_exception_ptr(
      DivergenceError("LS-REPLAY-DEPARTS",
                      fmt::format("the program departs from its record: it waits, and in the recorded run {} before "
                                  "anything else happened",
                                  missing),
                      "give the program and the data of the recorded run; what it schedules must not depend on done(), "
                      "steps() or a clock")));
}

void ChiefTask::act(ChiefOutput& out) {
  // Results first: a step that is given now may have them as arguments.
  for (const ChiefEvent& event : out.events) {
    if (const auto* counted = std::get_if<StepCounted>(&event)) {
      if (mail_.decided) mail_.decided(counted->step);
      if (const auto found = open_.extract(counted->step)) {
        found.mapped()->result = counted->result;
        found.mapped()->order = counted_++;
        found.mapped()->is_decided = true;
      }
      if (replay_) replay_->decided(counted->step);
    } else if (const auto* closed = std::get_if<StepClosed>(&event)) {
      if (mail_.decided) mail_.decided(closed->step);
      close(*closed);
    } else if (const auto* whole = std::get_if<CutWhole>(&event)) {
      cut_ = *whole;
    } else if (const auto* ended = std::get_if<StreamsEnded>(&event)) {
      ended_.insert(ended->kind);
      if (replay_) replay_->streams_ended(ended->kind);
    }
  }
  if (has_ended_) return;
  if (recorder_) guard([&] { recorder_->take(out); });
  for (const ToWorker& one : out.to_workers) replay_ ? replay_->carry(one) : mail_.to_worker(one);
  for (const ToServer& one : out.to_servers) replay_ ? replay_->carry(one) : mail_.to_server(one);
  if (!out.events.empty()) decided_.notify_all();
  if (until_ && !failure_) {
    const auto is_last = [&](const ChiefEvent& event) {
      const auto* counted = std::get_if<StepCounted>(&event);
      const auto* closed = std::get_if<StepClosed>(&event);
      return (counted && counted->step == *until_) || (closed && closed->step == *until_);
    };
    if (std::ranges::any_of(out.events, is_last)) {
      stop(LogLevel::kInfo, fmt::format("stopped after step {}, whose changes were applied last; {} steps count",
                                        *until_, machine_.steps()));
    }
  }
}

void ChiefTask::close(const StepClosed& closed) {
  const auto found = open_.extract(closed.step);
  const std::exception_ptr error = error_of(closed);
  if (replay_) replay_->decided(closed.step);
  const bool is_first = closed.why == ClosedBecause::kFailed || closed.why == ClosedBecause::kLostTooOften;
  if (is_first && !first_error_) first_error_ = error;
  if (!found) return;
  found.mapped()->error = error;
  found.mapped()->is_decided = true;
}

void ChiefTask::throw_first_error() {
  if (failure_) std::rethrow_exception(failure_);
  if (first_error_) std::rethrow_exception(std::exchange(first_error_, nullptr));
}

std::shared_ptr<ScheduledStep> ChiefTask::schedule(StepRequest request,
                                                   const std::vector<std::shared_ptr<ScheduledStep>>& after) {
  require_may_wait("Coordinator::schedule");
  for (const auto& one : after) {
    if (one->chief.get() != this) static_cast<void>(one->chief->result_of(*one));  // of a run before: it is there
  }
  std::unique_lock<std::mutex> lock(mutex_);
  if (replay_) schedulers_.insert(std::this_thread::get_id());
  const auto is_stopped = [&] { return failure_ || first_error_; };
  do {
    // Who evaluates holds the program back, and not the record.
    decided_.wait(lock, [&] { return is_stopped() || !is_held_back(); });
    wait(lock, [&] {
      if (replay_ && !replay_->may_schedule()) return false;
      return is_stopped() || machine_.has_room(request.argument_bytes);
    });
  } while (!is_stopped() && is_held_back());
  throw_first_error();
  if (ended_.contains(request.kind)) {
    throw EndOfStream("LS-END-OF-STREAM", "a step was scheduled after the streams of all workers had ended",
                      "schedule as many steps as there are batches, or let the streams repeat()");
  }
  for (const auto& one : after) {
    if (one->chief.get() != this) continue;
    if (!one->is_decided) {
      request.after.push_back(one->number);
    } else if (one->error) {
      throw CancelledError(
          "LS-CANCELLED",
          fmt::format("a step was scheduled with the result of step {}, which never counts", one->number),
          "schedule that step again first");
    }
  }
  if (recorder_) guard([&] { recorder_->schedules(gate_->writes() - writes_); });
  if (replay_) guard([&] { replay_->schedules(next_, gate_->writes() - writes_); });
  throw_first_error();
  const auto step = std::make_shared<ScheduledStep>();
  step->chief = shared_from_this();
  work([&](ChiefOutput&) {
    step->number = machine_.schedule(std::move(request));
    open_[step->number] = step;
    next_ = std::max(next_, step->number + 1);
  });
  follow();
  return step;
}

void ChiefTask::drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  const int64_t end = next_;
  work([&](ChiefOutput&) { machine_.complete_round(); });
  follow();
  wait(lock, [&] { return failure_ || open_.empty() || open_.begin()->first >= end; });
  if (replay_) replay_->drains();
}

void ChiefTask::join() {
  require_may_wait("Coordinator::join");
  drain();
  const std::lock_guard<std::mutex> lock(mutex_);
  throw_first_error();
}

bool ChiefTask::done() {
  const std::lock_guard<std::mutex> lock(mutex_);
  throw_first_error();
  return open_.empty();
}

void ChiefTask::cancel() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (has_ended_) std::rethrow_exception(failure_);
  if (!replay_ || failure_) {
    if (recorder_) guard([&] { recorder_->cancels(); });
    return work([&](ChiefOutput& out) { machine_.cancel(out); });
  }
  replay_->wants_cancel();
  follow();
  wait(lock, [&] { return failure_ || replay_->has_cancelled(); });
}

int64_t ChiefTask::steps() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return machine_.steps();
}

int64_t ChiefTask::settled() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return replay_ ? std::min(machine_.settled(), replay_->lowest_late()) : machine_.settled();
}

Position ChiefTask::position_sent() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (replay_) wait(lock, [&] { return replay_->has_sent_all(); });
  return machine_.position();
}

ChiefCut ChiefTask::next_begin() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {.position = 0, .counted = machine_.steps(), .floor = machine_.settled()};
}

void ChiefTask::begin_cut(int64_t cut, FunctionRef<void(const ChiefCut&)> fn) {
  std::unique_lock<std::mutex> lock(mutex_);
  decided_.wait(lock, [&] { return failure_ || !machine_.is_cutting(); });
  if (failure_) std::rethrow_exception(failure_);
  work([&](ChiefOutput&) {
    machine_.begin_cut(cut);
    fn(machine_.cutting());
  });
}

void ChiefTask::end_cut(int64_t cut) {
  const std::lock_guard<std::mutex> lock(mutex_);
  work([&](ChiefOutput&) { machine_.end_cut(cut); });
}

Payload ChiefTask::result_of(const ScheduledStep& step) {
  require_may_wait("RemoteValue::get");
  std::unique_lock<std::mutex> lock(mutex_);
  if (!failure_ && (replay_ ? replay_->completes_round() : !step.is_decided)) {
    if (recorder_ && in_rounds_ && std::exchange(round_completed_, next_) != next_)
      guard([&] { recorder_->completes_round(); });
    work([&](ChiefOutput&) { machine_.complete_round(); });
    follow();
  }
  wait(lock, [&] { return failure_ || step.is_decided; });
  if (!step.is_decided) throw_first_error();  // of the run
  if (!step.error) return step.result;
  if (first_error_) std::rethrow_exception(std::exchange(first_error_, nullptr));
  std::rethrow_exception(step.error);
}

std::size_t ChiefTask::first_of(const std::deque<std::shared_ptr<ScheduledStep>>& steps) {
  require_may_wait("Trainer::fit");
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_decided = [](const auto& one) { return one->is_decided; };
  wait(lock, [&] { return failure_ || first_error_ || std::ranges::any_of(steps, is_decided); });
  throw_first_error();
  std::size_t first = steps.size();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!steps[i]->is_decided) continue;
    if (steps[i]->error) std::rethrow_exception(steps[i]->error);
    if (first == steps.size() || steps[i]->order < steps[first]->order) first = i;
  }
  return first;
}

void ChiefTask::hold_back() {
  std::unique_lock<std::mutex> lock(mutex_);
  decided_.wait(lock, [&] { return failure_ || !is_held_back(); });
  throw_first_error();
  holder_ = std::this_thread::get_id();
}

void ChiefTask::go_on() {
  const std::lock_guard<std::mutex> lock(mutex_);
  holder_ = {};
  decided_.notify_all();
}

void ChiefTask::wait_while_held_back() {
  std::unique_lock<std::mutex> lock(mutex_);
  decided_.wait(lock, [&] { return failure_ || !is_held_back(); });
}

/// Before steps are given that take the result of this part of a round.
void ChiefTask::keep_ready_result(int64_t number) {
  const Payload* const result = machine_.ready_result(number);
  const auto step = result ? open_.find(number) : open_.end();
  if (step != open_.end()) step->second->result = *result;
}

void ChiefTask::receive(const ChiefMessage& message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto* const report = std::get_if<StepReport>(&message);
  if (report != nullptr) {
    if (replay_) {
      replay_->reported(*report);
      return follow();
    }
    if (recorder_ && machine_.is_alive(report->from)) {
      guard([&] { recorder_->reports(*report, machine_.is_awaited(report->from, report->step)); });
    }
  }
  work([&](ChiefOutput& out) {
    machine_.receive(message, out);
    if (report != nullptr) keep_ready_result(report->step.step);
  });
  if (std::holds_alternative<ServerRead>(message)) decided_.notify_all();  // somebody may wait for servers
}

void ChiefTask::worker_joined(int32_t worker, FunctionRef<void(uint32_t incarnation)> welcome) {
  const std::lock_guard<std::mutex> lock(mutex_);
  work([&](ChiefOutput& out) { welcome(machine_.worker_joined(worker, out)); });
}

void ChiefTask::worker_lost(WorkerId worker) {
  const std::lock_guard<std::mutex> lock(mutex_);
  work([&](ChiefOutput& out) { machine_.worker_lost(worker, out); });
}

void ChiefTask::change(Payload payload) {
  const std::lock_guard<std::mutex> lock(mutex_);
  work([&](ChiefOutput&) { machine_.change(std::move(payload), true); });
}

void ChiefTask::wait_for_servers() {
  std::unique_lock<std::mutex> lock(mutex_);
  const Position end = machine_.position();
  decided_.wait(lock, [&] { return failure_ || machine_.position() - machine_.log().most_behind() >= end; });
  if (failure_) std::rethrow_exception(failure_);
}

CutWhole ChiefTask::cut() {
  std::unique_lock<std::mutex> lock(mutex_);
  decided_.wait(lock, [&] { return failure_ || !machine_.is_cutting(); });
  if (failure_) std::rethrow_exception(failure_);
  const int64_t id = next_cut_++;
  cut_.reset();
  work([&](ChiefOutput&) { machine_.begin_cut(id); });
  decided_.wait(lock, [&] { return failure_ || (cut_ && cut_->cut == id); });
  if (failure_) std::rethrow_exception(failure_);
  return std::move(*cut_);
}

void ChiefTask::overdue(StepAttempt step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  work([&](ChiefOutput& out) { machine_.step_overdue(step, out); });
}

void ChiefTask::give_up_waiting() {
  const std::lock_guard<std::mutex> lock(mutex_);
  work([&](ChiefOutput& out) { machine_.give_up_waiting(out); });
}

bool ChiefTask::takes(const ToServer& message) {
  if (!replay_) return false;
  const auto* pull = std::get_if<PullRequest>(&message.message);
  if (pull != nullptr && pull->step.step >= kFirstEvaluated) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  guard([&] { replay_->carry(message); });
  if (replay_->is_stuck()) decided_.notify_all();  // who waits for the program finds out why
  return true;
}

void ChiefTask::answers(const ToWorker& message) {
  const auto* values = std::get_if<PulledValues>(&message.message);
  if (!replay_ || !values) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  guard([&] { replay_->answered(*values); });
  decided_.notify_all();  // somebody may wait for what is sent to the server now
}

Position ChiefTask::begin_read() {
  std::unique_lock<std::mutex> lock(mutex_);
  const std::optional<Position> state = replay_ ? replay_->read_here() : std::nullopt;
  if (!state) return replay_ && !failure_ ? 0 : machine_.position();
  // What makes this state is decided, or else the program departs; but workers may have to pull the state before it.
  wait(
      lock, [&] { return failure_ || replay_->has_sent(*state); }, WaitsFor::kServer);
  return replay_->position_of(*state).value_or(0);
}

void ChiefTask::end_read(Position state) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (recorder_) guard([&] { recorder_->reads(state); });
  if (replay_) replay_->end_read();
}

void ChiefTask::end_record() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (replay_) replay_->drains(true);
  if (!recorder_) return;
  guard([&] { recorder_->end(); });
  recorder_.reset();
}

void ChiefTask::end_replay() {
  if (!replay_) return;
  std::unique_lock<std::mutex> lock(mutex_);
  follow();
  wait(lock, [&] { return failure_ || replay_->is_at_end(); });
  if (failure_) std::rethrow_exception(failure_);
}

bool ChiefTask::has_stopped() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return has_stopped_;
}

void ChiefTask::require_not_ended() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (has_ended_) std::rethrow_exception(failure_);
}

void ChiefTask::require_not_failed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

void ChiefTask::end() {
  const std::lock_guard<std::mutex> lock(mutex_);
  has_ended_ = true;
  fail_now(
      std::make_exception_ptr(UsageError("LS-COORDINATE", "a coordinator was used after its coordinate() had ended",
                                         "schedule and wait inside the function that coordinate() is given")));
}

void ChiefTask::fail(std::exception_ptr error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  fail_now(std::move(error));
}

}  // namespace lockstep::internal::server
