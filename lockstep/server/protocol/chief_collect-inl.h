// How the chief decides rounds and gives steps: BasicChiefMachine::collect(), for instances with any rules.
#pragma once

#include <algorithm>
#include <tuple>
#include <utility>

#include "lockstep/server/protocol/chief_machine.h"

namespace lockstep::internal::inline server {

template <class Rules>
void BasicChiefMachine<Rules>::collect(ChiefOutput& out) {
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    decide_rounds(out);
    log_changes();
    while (const auto step = next_to_give()) {
      const uint32_t kind = steps_[*step].kind;
      if (have_all_ended(kind)) {
        close(*step, ClosedBecause::kStreamEnded, {}, out);
        goes_on = true;  // which may complete a round, and what waits for that
        continue;
      }
      const auto chosen = plan_ ? std::optional(plan_->worker_of(*step)) : choose_worker(kind);
      if (!chosen) break;
      give(*step, *chosen, out);
    }
  }
  for (std::size_t server = 0; server < static_cast<std::size_t>(options_.servers); ++server) {
    auto entries = log_.next_for(server, options_.eager);
    if (!entries) continue;
    entries->epoch = epoch_;
    entries->floor = steps_.floor();
    out.to_servers.push_back({.server = static_cast<int32_t>(server), .message = std::move(*entries)});
  }
}

// Rounds.

/// Decides the rounds of which all parts are there, or asks servers for squares of the first of them.
template <class Rules>
void BasicChiefMachine<Rules>::decide_rounds(ChiefOutput& out) {
  while (in_rounds() && !summing_) {
    const int64_t round = round_of(steps_.floor(), options_.workers);
    std::vector<int64_t> parts;
    for (int64_t step = steps_.floor(); step < (round + 1) * options_.workers; ++step) {
      if (!steps_.has(step)) return;
      if (steps_[step].state == StepState::kReady) {
        parts.push_back(step);
      } else if (!steps_[step].is_decided()) {
        return;
      }
    }
    bool apply = true;
    for (const int64_t step : parts) {
      apply &= steps_[step].apply;
      log_.append({.kind = LogEntry::Kind::kPart, .attempt = steps_[step].last_attempt(), .number = step});
    }
    if (options_.squares && apply) {
      log_.append({.kind = LogEntry::Kind::kSquares, .number = round});
      summing_ = Summing{.round = round, .parts = std::move(parts)};
      summing_->squares.resize(static_cast<std::size_t>(options_.servers));
    } else {
      count_round(round, parts, 1, apply, out);
    }
  }
}

template <class Rules>
void BasicChiefMachine<Rules>::count_round(int64_t round, const std::vector<int64_t>& parts, double coefficient,
                                           bool apply, ChiefOutput& out) {
  log_round(round, coefficient, apply, steps_[parts.front()].rates);
  for (const int64_t step : parts) {
    const Payload result = std::move(steps_[step].result);
    count(step, steps_[step].owner, log_.end(), result, out);
  }
}

template <class Rules>
void BasicChiefMachine<Rules>::log_round(int64_t round, double coefficient, bool apply, const Payload& rates) {
  seen_by_all_ = log_.append(
      {.kind = LogEntry::Kind::kRound, .apply = apply, .number = round, .coefficient = coefficient, .payload = rates});
}

/// Changes for which all steps before are decided.
template <class Rules>
void BasicChiefMachine<Rules>::log_changes() {
  while (!changes_.empty() && changes_.front().before <= steps_.floor()) {
    seen_by_all_ = log_.append({.kind = LogEntry::Kind::kChange, .payload = std::move(changes_.front().payload)});
    changes_.pop_front();
  }
}

// Which step is given to whom.

/// The lowest step that may begin now, if a worker is free.
template <class Rules>
std::optional<int64_t> BasicChiefMachine<Rules>::next_to_give() {
  if (log_.most_behind() > options_.most_behind) return std::nullopt;
  next_to_give_ = std::max(next_to_give_, steps_.floor());
  const auto waits = [&](int64_t step) { return steps_[step].state == StepState::kWaiting && steps_[step].unmet == 0; };
  while (next_to_give_ < steps_.end() && !waits(next_to_give_) && steps_[next_to_give_].state != StepState::kFree) {
    ++next_to_give_;
  }
  int64_t step = next_to_give_;
  if (!again_.empty()) {
    step = *again_.begin();
  } else if (step == steps_.end() || !waits(step)) {
    return std::nullopt;
  }
  if (in_rounds() && round_of(step, options_.workers) != round_of(steps_.floor(), options_.workers)) {
    return std::nullopt;
  }
  if (!changes_.empty() && step >= changes_.front().before) return std::nullopt;
  return step;
}

/// The worker that has least to do, and of these the one with the lowest count.
template <class Rules>
std::optional<int32_t> BasicChiefMachine<Rules>::choose_worker(uint32_t kind) {
  std::optional<int32_t> chosen;
  const auto rank = [&](const Worker& one) { return std::tuple(one.running.size(), one.count.count()); };
  for (int32_t index = 0; index < options_.workers; ++index) {
    const Worker& one = worker(index);
    if (!has_room(one, kind)) continue;
    if (is_bounded()) {
      const auto others = lowest_count(one, kind);
      if (others && !Rules::is_within_bound(next_index(one, kind), *others, *options_.staleness)) continue;
    }
    if (!chosen || rank(one) < rank(worker(*chosen))) chosen = index;
  }
  if (chosen && is_bounded()) {
    Worker& one = worker(*chosen);
    one.count.raise(next_index(one, kind) - one.at_work());
    one.was_passed = false;
    for (Worker& other : workers_) {
      const bool is_behind = other.count.count() < one.count.count() + one.at_work() - *options_.staleness;
      if (&other != &one && other.is_alive && !holds_up(other, kind) && is_behind) other.was_passed = true;
    }
  }
  return chosen;
}

template <class Rules>
void BasicChiefMachine<Rules>::give(int64_t step, int32_t index, ChiefOutput& out) {
  Worker& to = worker(index);
  StepRecord& record = steps_[step];
  Position needed = std::max({seen_by_all_, record.position, to.joined_at, to.count.last_position()});
  if (is_bounded()) {
    const int64_t first = to.count.count() + to.at_work() - *options_.staleness;
    for (const Worker& other : workers_) {
      if (&other != &to && other.is_alive) needed = std::max(needed, other.count.position_of(first));
    }
  }
  again_.erase(step);
  leave_queue(record);
  record.state = StepState::kGiven;
  record.owner = {.worker = index, .incarnation = to.incarnation};
  record.owners.push_back(index);
  to.noted = to.reports;
  to.running.push_back({.give = {.epoch = epoch_,
                                 .to = record.owner,
                                 .number = ++to.gives,
                                 .reports_noted = to.reports,
                                 .step = {.step = step, .attempt = record.gives++},
                                 .kind = record.kind,
                                 .position = Rules::position_to_see(needed),
                                 .follows_own = Rules::follows_own(in_rounds()),
                                 .arguments = record.arguments}});
  out.to_workers.push_back({.worker = record.owner, .message = to.running.back().give});
}

/// How many of the steps that the worker has may count.
template <class Rules>
int64_t BasicChiefMachine<Rules>::Worker::at_work() const {
  return std::count_if(running.begin(), running.end(), [](const Running& one) { return one.counts; });
}

/// It takes a step of this kind now. A worker whose attempt was given up first has to end it.
template <class Rules>
bool BasicChiefMachine<Rules>::has_room(const Worker& one, uint32_t kind) const {
  return one.is_alive && !one.ended.contains(kind) && one.running.size() < options_.window &&
         one.at_work() == static_cast<int64_t>(one.running.size());
}

template <class Rules>
bool BasicChiefMachine<Rules>::holds_up(const Worker& one, uint32_t kind) const {
  return one.is_alive && (one.at_work() > 0 || has_room(one, kind));
}

template <class Rules>
std::optional<int64_t> BasicChiefMachine<Rules>::lowest_count(const Worker& except, uint32_t kind) const {
  std::optional<int64_t> lowest;
  for (const Worker& one : workers_) {
    if (&one == &except || !holds_up(one, kind)) continue;
    if (!lowest || one.count.count() < *lowest) lowest = one.count.count();
  }
  return lowest;
}

/// Which of the worker's steps, from 0, the next one is. Whom others have not waited for goes on from the lowest count.
template <class Rules>
int64_t BasicChiefMachine<Rules>::next_index(const Worker& one, uint32_t kind) const {
  int64_t count = one.count.count();
  if (one.was_passed) count = std::max(count, lowest_count(one, kind).value_or(count));
  return count + one.at_work();
}

}  // namespace lockstep::internal::server
