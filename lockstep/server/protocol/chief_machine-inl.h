// The functions of BasicChiefMachine, for instances with any rules: the program's calls, and how steps are decided.
// What comes from tasks is in chief_tasks-inl.h, and collect() in chief_collect-inl.h.
#pragma once

#include <algorithm>
#include <utility>

#include "lockstep/server/protocol/chief_machine.h"

namespace lockstep::internal::inline server {

template <class Rules>
BasicChiefMachine<Rules>::BasicChiefMachine(const ChiefOptions& options, uint64_t epoch, const ChiefCut& restored)
    : options_(options),
      epoch_(epoch),
      counted_(restored.counted),
      steps_(restored.floor),
      next_(restored.floor),
      next_to_give_(restored.floor),
      log_(static_cast<std::size_t>(options.servers), restored.position),
      workers_(static_cast<std::size_t>(options.workers)) {
  const std::set<int64_t> decided = decided_above(restored);
  const int64_t end = decided.empty() ? restored.floor : *decided.rbegin() + 1;
  const int64_t highest = restored.counted_above.empty()
                              ? -1
                              : *std::max_element(restored.counted_above.begin(), restored.counted_above.end());
  for (int64_t step = restored.floor; step < end; ++step) {
    steps_.make(step);
    if (!Rules::is_left_out(decided.contains(step), step, highest)) steps_.decide(step, StepState::kCounted);
  }
  if (in_rounds()) close_numbers(first_of_next_round(next_number(), options_.workers));
}

// The program's calls.

template <class Rules>
bool BasicChiefMachine<Rules>::has_room(uint64_t argument_bytes) const {
  if (queued_ == 0) return true;
  return queued_ < static_cast<int64_t>(options_.most_queued) &&
         (queued_bytes_ == 0 || queued_bytes_ + argument_bytes <= options_.most_argument_bytes);
}

template <class Rules>
int64_t BasicChiefMachine<Rules>::schedule(StepRequest request) {
  const int64_t step = next_number();
  StepRecord& record = steps_.make(step);
  next_ = step + 1;
  record.state = StepState::kWaiting;
  record.kind = request.kind;
  record.arguments = std::move(request.arguments);
  record.argument_bytes = request.argument_bytes;
  record.rates = rates_;
  for (const int64_t before : request.after) {
    if (!steps_.has(before)) continue;
    const StepState state = steps_[before].state;
    if (state != StepState::kWaiting && state != StepState::kGiven) continue;
    steps_[before].dependents.push_back(step);
    ++record.unmet;
  }
  ++queued_;
  queued_bytes_ += record.argument_bytes;
  return step;
}

template <class Rules>
void BasicChiefMachine<Rules>::set_rates(Payload rates) {
  complete_round();
  rates_ = std::move(rates);
}

template <class Rules>
void BasicChiefMachine<Rules>::change(Payload payload, bool in_order) {
  if (in_order) {
    complete_round();
    changes_.push_back({.before = next_number(), .payload = std::move(payload)});
  } else {
    log_.append({.kind = LogEntry::Kind::kChange, .payload = std::move(payload)});
  }
}

template <class Rules>
void BasicChiefMachine<Rules>::complete_round() {
  if (in_rounds()) close_numbers(first_of_next_round(next_number(), options_.workers));
}

template <class Rules>
void BasicChiefMachine<Rules>::cancel(ChiefOutput& out) {
  complete_round();
  if (summing_) {
    // The servers have taken the parts out of what they hold, and drop them with the round.
    const Summing summed = *std::exchange(summing_, std::nullopt);
    log_round(summed.round, 1, false, {});
    for (const int64_t step : summed.parts) close_unlogged(step, ClosedBecause::kCancelled, {}, out);
  }
  const int64_t end = steps_.end();
  for (int64_t step = steps_.floor(); step < end; ++step) {
    if (!steps_.has(step) || steps_[step].is_decided() || steps_[step].state == StepState::kFree) continue;
    close(step, ClosedBecause::kCancelled, {}, out);
  }
}

template <class Rules>
bool BasicChiefMachine<Rules>::begin_cut(int64_t cut) {
  if (cut_) return false;
  if (Rules::cuts_are_entries()) log_.append({.kind = LogEntry::Kind::kCut, .number = cut});
  cut_ = Cut{.id = cut, .chief = counters()};
  cut_->saved.resize(static_cast<std::size_t>(options_.servers));
  return true;
}

template <class Rules>
void BasicChiefMachine<Rules>::end_cut(int64_t cut) {
  log_.append({.kind = LogEntry::Kind::kRelease, .number = cut});
}

template <class Rules>
void BasicChiefMachine<Rules>::decide_round(int64_t round, double coefficient, bool apply, ChiefOutput& out) {
  if (!summing_ || summing_->round != round) return;  // it was cancelled meanwhile
  const Summing summed = *std::exchange(summing_, std::nullopt);
  count_round(summed.round, summed.parts, coefficient, apply, out);
}

// What follows from both.

/// The number that schedule() takes next.
template <class Rules>
int64_t BasicChiefMachine<Rules>::next_number() {
  next_ = std::max(next_, steps_.floor());
  while (next_ < steps_.end() && steps_[next_].state != StepState::kFree) ++next_;
  return next_;
}

/// Closes the numbers from the next one to `end`, which nobody has scheduled.
template <class Rules>
void BasicChiefMachine<Rules>::close_numbers(int64_t end) {
  for (int64_t step = next_number(); step < end; step = next_number()) {
    steps_.make(step);
    steps_.decide(step, StepState::kClosed);
  }
}

template <class Rules>
void BasicChiefMachine<Rules>::count(int64_t step, WorkerId by, Position position, const Payload& result,
                                     ChiefOutput& out) {
  ++counted_;
  if (!in_rounds() && is_alive(by)) {
    // Counts of others that are at work are at most k + 1 apart, so older positions are not asked for.
    constexpr int64_t most = 4096;
    const int64_t staleness = std::min(options_.staleness.value_or(0), most);
    worker(by.worker).count.add(position, static_cast<std::size_t>(2 * staleness + 2));
  }
  meet_dependents(steps_[step], position);
  out.events.emplace_back(StepCounted{.step = step, .worker = by.worker, .result = result});
  steps_.decide(step, StepState::kCounted);
}

template <class Rules>
void BasicChiefMachine<Rules>::close(int64_t step, ClosedBecause why, const Payload& error, ChiefOutput& out) {
  if (steps_[step].gives > 0) close_on_servers(step);
  close_unlogged(step, why, error, out);
}

/// Closes the step, and those that would have had its result as an argument.
template <class Rules>
void BasicChiefMachine<Rules>::close_unlogged(int64_t first, ClosedBecause why, const Payload& error,
                                              ChiefOutput& out) {
  std::vector<int64_t> steps{first};
  for (std::size_t at = 0; at < steps.size(); ++at) {
    const int64_t step = steps[at];
    if (!steps_.has(step) || steps_[step].is_decided()) continue;
    StepRecord& record = steps_[step];
    if (record.state == StepState::kGiven) {
      for (Running& running : worker(record.owner.worker).running) {
        if (running.counts && running.give.step.step == step) abandon(running, out);
      }
    } else if (record.state == StepState::kWaiting) {
      leave_queue(record);
      again_.erase(step);
    }
    // Those that wait for its result; that of a part of a round was there before.
    steps.insert(steps.end(), record.dependents.begin(), record.dependents.end());
    out.events.emplace_back(StepClosed{.step = step,
                                       .why = at == 0 ? why : ClosedBecause::kCancelled,
                                       .error = at == 0 ? error : nullptr,
                                       .workers = std::move(record.owners)});
    steps_.decide(step, StepState::kClosed);
  }
}

/// Whatever servers hold of the step is dropped.
template <class Rules>
void BasicChiefMachine<Rules>::close_on_servers(int64_t step) {
  log_.append({.kind = LogEntry::Kind::kClose, .number = step});
}

/// The attempt counts no more; the worker has the step until it says otherwise.
template <class Rules>
void BasicChiefMachine<Rules>::abandon(Running& running, ChiefOutput& out) {
  running.counts = false;
  withdraw(running, out);
}

template <class Rules>
void BasicChiefMachine<Rules>::withdraw(const Running& running, ChiefOutput& out) const {
  out.to_workers.push_back(
      {.worker = running.give.to,
       .message = WithdrawStep{.epoch = epoch_, .to = running.give.to, .step = running.give.step}});
}

/// The last attempts at these steps were lost.
template <class Rules>
void BasicChiefMachine<Rules>::give_again(const std::vector<int64_t>& steps, ChiefOutput& out) {
  std::optional<int64_t> too_often;
  for (const int64_t step : steps) {
    StepRecord& record = steps_[step];
    if (record.state == StepState::kGiven) {
      record.state = StepState::kWaiting;
      again_.insert(step);
      ++queued_;
      queued_bytes_ += record.argument_bytes;
    }
    if (!may_be_given_again(record.gives - record.returned, options_.attempts) && !too_often) too_often = step;
  }
  if (!too_often) return;
  close(*too_often, ClosedBecause::kLostTooOften, {}, out);
  cancel(out);
}

/// The step has a result, and its entry, if there is one, is before the position.
template <class Rules>
void BasicChiefMachine<Rules>::meet_dependents(StepRecord& record, Position position) {
  for (const int64_t step : std::exchange(record.dependents, {})) {
    if (!steps_.has(step) || steps_[step].state != StepState::kWaiting) continue;
    StepRecord& dependent = steps_[step];
    dependent.position = std::max(dependent.position, position);
    if (--dependent.unmet == 0 && step < next_to_give_) again_.insert(step);
  }
}

template <class Rules>
void BasicChiefMachine<Rules>::leave_queue(const StepRecord& record) {
  --queued_;
  queued_bytes_ -= record.argument_bytes;
}

template <class Rules>
ChiefCut BasicChiefMachine<Rules>::counters() const {
  ChiefCut cut{.position = log_.end(), .counted = counted_, .floor = steps_.floor()};
  for (int64_t step = steps_.floor(); step < steps_.end(); ++step) {
    if (steps_[step].state == StepState::kCounted) cut.counted_above.push_back(step);
    if (steps_[step].state == StepState::kClosed) cut.closed_above.push_back(step);
  }
  return cut;
}

}  // namespace lockstep::internal::server
