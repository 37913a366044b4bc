// What comes to a chief from tasks: workers that join and are lost, and messages; for instances with any rules.
#pragma once

#include <algorithm>
#include <utility>

#include "lockstep/server/protocol/chief_machine.h"

namespace lockstep::internal::inline server {

template <class Rules>
uint32_t BasicChiefMachine<Rules>::worker_joined(int32_t index, ChiefOutput& out) {
  Worker& joined = worker(index);
  if (joined.is_alive) worker_lost({.worker = index, .incarnation = joined.incarnation}, out);
  int64_t lowest = 0;
  bool is_first = true;
  for (const Worker& other : workers_) {
    if (!other.is_alive || other.was_passed) continue;
    lowest = is_first ? other.count.count() : std::min(lowest, other.count.count());
    is_first = false;
  }
  joined = {.is_alive = true,
            .incarnation = joined.incarnation + 1,
            .count = WorkerCount(lowest),
            .joined_at = log_.end(),
            .ended = std::move(joined.ended)};
  return joined.incarnation;
}

template <class Rules>
void BasicChiefMachine<Rules>::worker_lost(WorkerId id, ChiefOutput& out) {
  if (!is_alive(id)) return;
  Worker& lost = worker(id.worker);
  lost.is_alive = false;
  // Its steps have no successor of their own kind to wait for: whoever begins one later sees all of them.
  if (is_bounded()) seen_by_all_ = std::max(seen_by_all_, lost.count.last_position());
  std::vector<int64_t> steps;
  for (const Running& running : std::exchange(lost.running, {})) {
    if (running.counts) steps.push_back(running.give.step.step);
  }
  give_again(steps, out);
}

template <class Rules>
void BasicChiefMachine<Rules>::step_overdue(StepAttempt step, ChiefOutput& out) {
  if (!steps_.has(step.step)) return;
  const StepRecord& record = steps_[step.step];
  if (record.state != StepState::kGiven || record.last_attempt() != step.attempt) return;
  // Other steps that wait in the same worker would wait for this one.
  std::vector<int64_t> steps;
  for (Running& running : worker(record.owner.worker).running) {
    if (!running.counts) continue;
    steps.push_back(running.give.step.step);
    abandon(running, out);
  }
  give_again(steps, out);
}

template <class Rules>
void BasicChiefMachine<Rules>::give_up_waiting(ChiefOutput& out) {
  const auto found = std::find_if(again_.begin(), again_.end(), [&](int64_t step) { return steps_[step].gives > 0; });
  if (found == again_.end()) return;
  close(*found, ClosedBecause::kLostTooOften, {}, out);
  cancel(out);
}

template <class Rules>
void BasicChiefMachine<Rules>::receive(const ChiefMessage& message, ChiefOutput& out) {
  std::visit(
      [&](const auto& one) {
        if (Rules::is_of_epoch(epoch_, one.epoch)) on(one, out);
      },
      message);
}

template <class Rules>
void BasicChiefMachine<Rules>::on(const StepReport& report, ChiefOutput& out) {
  const bool is_current = is_alive(report.from);
  bool is_owner = false;
  if (!is_current) {
    out.to_workers.push_back({.worker = report.from, .message = WorkerReplaced{.epoch = epoch_, .to = report.from}});
  } else {
    Worker& from = worker(report.from.worker);
    if (report.number != from.reports + 1) {
      if (report.number <= from.reports) note_reports(report.from, out);
      return;
    }
    ++from.reports;
    const auto it = std::find_if(from.running.begin(), from.running.end(),
                                 [&](const Running& running) { return running.give.step == report.step; });
    if (it == from.running.end()) return;
    is_owner = it->counts;
    const uint32_t kind = it->give.kind;
    from.running.erase(it);
    if (report.outcome == StepOutcome::kStreamEnded) stream_ended(from, kind, out);
  }
  const int64_t step = report.step.step;
  if (!steps_.has(step)) return;
  if (steps_[step].state == StepState::kGiven && Rules::is_decisive(is_owner)) decide(report, out);
}

template <class Rules>
void BasicChiefMachine<Rules>::on(const ServerRead& read, ChiefOutput& /*out*/) {
  if (read.server < 0 || read.server >= options_.servers) return;
  log_.note_read(static_cast<std::size_t>(read.server), read.position);
}

template <class Rules>
void BasicChiefMachine<Rules>::on(const RoundSquares& squares, ChiefOutput& out) {
  if (!summing_ || summing_->round != squares.round) return;
  if (squares.server < 0 || squares.server >= options_.servers) return;
  auto& from_server = summing_->squares[static_cast<std::size_t>(squares.server)];
  if (from_server) return;
  from_server = squares.squares;
  const auto arrived = std::count_if(summing_->squares.begin(), summing_->squares.end(),
                                     [](const auto& one) { return one.has_value(); });
  if (!Rules::has_all_squares(static_cast<std::size_t>(arrived), summing_->squares.size())) return;
  RoundSummed summed{.round = squares.round};
  for (const auto& one : summing_->squares) summed.squares.push_back(one.value_or(nullptr));
  out.events.emplace_back(std::move(summed));
}

template <class Rules>
void BasicChiefMachine<Rules>::on(const CutSaved& saved, ChiefOutput& out) {
  if (!cut_ || cut_->id != saved.cut || saved.server < 0 || saved.server >= options_.servers) return;
  cut_->saved[static_cast<std::size_t>(saved.server)] = saved.saved;
  if (!std::all_of(cut_->saved.begin(), cut_->saved.end(), [](const auto& one) { return one.has_value(); })) return;
  CutWhole whole{.cut = cut_->id, .chief = Rules::counts_at_the_entry() ? cut_->chief : counters()};
  for (const auto& one : cut_->saved) whole.saved.push_back(*one);
  cut_.reset();
  out.events.emplace_back(std::move(whole));
}

template <class Rules>
void BasicChiefMachine<Rules>::repeat_to_worker(WorkerId id, ChiefOutput& out) {
  if (!is_alive(id)) {
    out.to_workers.push_back({.worker = id, .message = WorkerReplaced{.epoch = epoch_, .to = id}});
    return;
  }
  note_reports(id, out);
  for (const Running& running : worker(id.worker).running) {
    out.to_workers.push_back({.worker = id, .message = running.give});
    if (!running.counts) withdraw(running, out);
  }
}

template <class Rules>
void BasicChiefMachine<Rules>::note_reports(ChiefOutput& out) {
  for (std::size_t index = 0; index < workers_.size(); ++index) {
    const Worker& one = workers_[index];
    if (!one.is_alive || one.noted == one.reports) continue;
    note_reports({.worker = static_cast<int32_t>(index), .incarnation = one.incarnation}, out);
  }
}

template <class Rules>
void BasicChiefMachine<Rules>::note_reports(WorkerId id, ChiefOutput& out) {
  Worker& one = worker(id.worker);
  one.noted = one.reports;
  out.to_workers.push_back({.worker = id, .message = ReportsNoted{.epoch = epoch_, .to = id, .reports = one.reports}});
}

template <class Rules>
bool BasicChiefMachine<Rules>::is_alive(WorkerId id) const {
  if (id.worker < 0 || id.worker >= options_.workers) return false;
  return worker(id.worker).is_alive && worker(id.worker).incarnation == id.incarnation;
}

template <class Rules>
bool BasicChiefMachine<Rules>::is_awaited(WorkerId id, StepAttempt step) const {
  if (!is_alive(id)) return false;
  const std::vector<Running>& running = worker(id.worker).running;
  return std::any_of(running.begin(), running.end(),
                     [&](const Running& one) { return one.counts && one.give.step == step; });
}

/// The step of this report, which is not decided, ends by it.
template <class Rules>
void BasicChiefMachine<Rules>::decide(const StepReport& report, ChiefOutput& out) {
  const int64_t step = report.step.step;
  StepRecord& record = steps_[step];
  switch (report.outcome) {
    case StepOutcome::kDone:
      if (in_rounds() && report.pushed) {
        record.state = StepState::kReady;
        record.owner = report.from;
        record.apply = report.apply;
        record.coefficient = report.coefficient;
        record.result = report.payload;
        meet_dependents(record, 0);
        return;
      }
      if (report.pushed) {
        log_.append({.kind = LogEntry::Kind::kCommit,
                     .apply = report.apply,
                     .attempt = report.step.attempt,
                     .number = step,
                     .coefficient = report.coefficient,
                     .payload = record.rates});
      } else if (record.gives > 1) {
        close_on_servers(step);  // an earlier attempt may have pushed
      }
      count(step, report.from, report.pushed ? log_.end() : 0, report.payload, out);
      return;
    case StepOutcome::kFailed:
      close(step, ClosedBecause::kFailed, report.payload, out);
      cancel(out);
      return;
    case StepOutcome::kStreamEnded: close(step, ClosedBecause::kStreamEnded, report.payload, out); return;
    case StepOutcome::kWithdrawn:
      ++record.returned;
      give_again({step}, out);
      return;
    case StepOutcome::kTooLate:
      // Only steps that are decided or were given up end so, and their reports do not come here.
      give_again({step}, out);
      return;
  }
}

template <class Rules>
void BasicChiefMachine<Rules>::stream_ended(Worker& from, uint32_t kind, ChiefOutput& out) {
  if (!from.ended.insert(kind).second || !have_all_ended(kind)) return;
  out.events.emplace_back(StreamsEnded{.kind = kind});
}

template <class Rules>
bool BasicChiefMachine<Rules>::have_all_ended(uint32_t kind) const {
  return std::all_of(workers_.begin(), workers_.end(), [&](const Worker& one) { return one.ended.contains(kind); });
}

}  // namespace lockstep::internal::server
