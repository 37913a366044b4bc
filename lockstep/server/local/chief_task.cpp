#include "lockstep/server/local/chief_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "lockstep/core/error.h"
#include "lockstep/core/ids.h"
#include "lockstep/server/local/step_payloads.h"

namespace lockstep::internal::inline server {

namespace {

/// An error of a step's function, as the program gets it: a ReplicaError that is nested on the function's own.
std::exception_ptr error_of(int64_t step, int32_t worker, const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (...) {
    return std::make_exception_ptr(ReplicaError(step, {{ReplicaId(worker), message_of(error), error}}));
  }
}

}  // namespace

ChiefTask::ChiefTask(const ChiefOptions& options, const ChiefCut& begin, std::shared_ptr<const StrategyGate> gate,
                     TaskMail mail, uint64_t epoch)
    : gate_(std::move(gate)), mail_(std::move(mail)), machine_(options, epoch, begin) {}

void ChiefTask::require_may_wait(const char* call) const {
  refuse_in_scheduled_step(call);
  gate_->require_not_inside(call);
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
  act(out);
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
    } else if (const auto* closed = std::get_if<StepClosed>(&event)) {
      if (mail_.decided) mail_.decided(closed->step);
      close(*closed);
    } else if (const auto* ended = std::get_if<StreamsEnded>(&event)) {
      ended_.insert(ended->kind);
    } else if (const auto* whole = std::get_if<CutWhole>(&event)) {
      cut_ = *whole;
    }
  }
  for (const ToWorker& one : out.to_workers) mail_.to_worker(one);
  for (const ToServer& one : out.to_servers) mail_.to_server(one);
  if (!out.events.empty()) decided_.notify_all();
}

void ChiefTask::close(const StepClosed& closed) {
  const auto found = open_.extract(closed.step);
  const int32_t worker = closed.workers.empty() ? 0 : closed.workers.back();
  std::exception_ptr error;
  switch (closed.why) {
    case ClosedBecause::kFailed: error = error_of(closed.step, worker, as<StepFailure>(closed.error).error); break;
    case ClosedBecause::kLostTooOften:
      error = std::make_exception_ptr(
          PeerError("LS-PEER",
                    fmt::format("step {} was given to {} workers, and each was lost or took too long", closed.step,
                                closed.workers.size()),
                    "look at the logs of these workers, and at timeouts.step"));
      break;
    case ClosedBecause::kCancelled:
      error = std::make_exception_ptr(CancelledError(
          "LS-CANCELLED",
          fmt::format("step {} was closed before it counted, by cancel() or by another step's error", closed.step),
          "schedule it again: the numbers of closed steps are not used again"));
      break;
    case ClosedBecause::kStreamEnded:
      error = std::make_exception_ptr(
          EndOfStream("LS-END-OF-STREAM",
                      fmt::format("step {} found no more data: the streams of all workers have ended", closed.step),
                      "schedule as many steps as there are batches, or let the streams repeat()"));
      break;
  }
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
  std::unique_lock<std::mutex> lock(mutex_);
  decided_.wait(
      lock, [&] { return failure_ || first_error_ || (!is_held_back() && machine_.has_room(request.argument_bytes)); });
  throw_first_error();
  if (ended_.contains(request.kind)) {
    throw EndOfStream("LS-END-OF-STREAM", "a step was scheduled after the streams of all workers had ended",
                      "schedule as many steps as there are batches, or let the streams repeat()");
  }
  for (const auto& one : after) {
    if (!one->is_decided) {
      request.after.push_back(one->number);
    } else if (one->error) {
      throw CancelledError(
          "LS-CANCELLED",
          fmt::format("a step was scheduled with the result of step {}, which never counts", one->number),
          "schedule that step again first");
    }
  }
  const auto step = std::make_shared<ScheduledStep>();
  step->chief = shared_from_this();
  work([&](ChiefOutput&) {
    step->number = machine_.schedule(std::move(request));
    open_[step->number] = step;
    next_ = std::max(next_, step->number + 1);
  });
  return step;
}

void ChiefTask::drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  const int64_t end = next_;
  work([&](ChiefOutput&) { machine_.complete_round(); });
  decided_.wait(lock, [&] { return failure_ || open_.empty() || open_.begin()->first >= end; });
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
  const std::lock_guard<std::mutex> lock(mutex_);
  work([&](ChiefOutput& out) { machine_.cancel(out); });
}

int64_t ChiefTask::steps() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return machine_.steps();
}

int64_t ChiefTask::settled() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return machine_.settled();
}

Position ChiefTask::position() const {
  const std::lock_guard<std::mutex> lock(mutex_);
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
  if (!step.is_decided && !failure_) work([&](ChiefOutput&) { machine_.complete_round(); });
  decided_.wait(lock, [&] { return failure_ || step.is_decided; });
  if (!step.is_decided) throw_first_error();  // of the run
  if (!step.error) return step.result;
  if (first_error_) std::rethrow_exception(std::exchange(first_error_, nullptr));
  std::rethrow_exception(step.error);
}

std::size_t ChiefTask::first_of(const std::deque<std::shared_ptr<ScheduledStep>>& steps) {
  require_may_wait("Trainer::fit");
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_decided = [](const auto& one) { return one->is_decided; };
  decided_.wait(lock, [&] { return failure_ || first_error_ || std::ranges::any_of(steps, is_decided); });
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

void ChiefTask::worker_joined(int32_t worker) {
  const std::lock_guard<std::mutex> lock(mutex_);
  work([&](ChiefOutput& out) { machine_.worker_joined(worker, out); });
}

void ChiefTask::receive(const ChiefMessage& message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  work([&](ChiefOutput& out) {
    machine_.receive(message, out);
    const auto* const report = std::get_if<StepReport>(&message);
    const Payload* const result = report ? machine_.ready_result(report->step.step) : nullptr;
    const auto step = result ? open_.find(report->step.step) : open_.end();
    if (step != open_.end()) step->second->result = *result;  // before steps are given that take it
  });
  if (std::holds_alternative<ServerRead>(message)) decided_.notify_all();  // somebody may wait for servers
}

void ChiefTask::worker_joined(int32_t worker, const std::function<void(uint32_t incarnation)>& welcome) {
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

void ChiefTask::end() {
  fail(std::make_exception_ptr(UsageError("LS-COORDINATE", "a coordinator was used after its coordinate() had ended",
                                          "schedule and wait inside the function that coordinate() is given")));
}

void ChiefTask::fail(std::exception_ptr error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_) failure_ = std::move(error);
  decided_.notify_all();
}

}  // namespace lockstep::internal::server
