#include "lockstep/server/record/run_recorder.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace lockstep::internal::inline server {

void RunRecorder::add(RecordEvent::Kind kind, RecordEvent event) {
  event.kind = kind;
  event.scheduled = scheduled_;
  file_->add(event);
}

void RunRecorder::schedules(uint64_t writes) {
  if (writes != writes_) add(RecordEvent::Kind::kChanged, {.state = writes});
  writes_ = writes;
  ++scheduled_;
}

void RunRecorder::take(const ChiefOutput& out) {
  for (const ToWorker& one : out.to_workers) {
    if (const auto* give = std::get_if<GiveStep>(&one.message)) functions_[give->step] = give->kind;
  }
  for (const ToServer& one : out.to_servers) {
    if (const auto* entries = std::get_if<LogEntries>(&one.message); entries && one.server == 0) sends(*entries);
  }
  for (const ChiefEvent& event : out.events) {
    const auto* closed = std::get_if<StepClosed>(&event);
    if (closed && closed->why == ClosedBecause::kLostTooOften) add(RecordEvent::Kind::kGivenUp, {.step = closed->step});
  }
}

void RunRecorder::reports(const StepReport& report, bool may_count) {
  const auto given = functions_.extract(report.step);
  if (!given || report.outcome == StepOutcome::kWithdrawn) return;  // its function has not run
  RecordEvent event{.step = report.step.step,
                    .worker = report.from.worker,
                    .function = given.mapped(),
                    .outcome = report.outcome,
                    .pushed = report.pushed,
                    .is_late = !may_count,
                    .data = report.data,
                    .push = report.push};
  event.states.reserve(report.pulled.size());
  for (const PulledAt& one : report.pulled) event.states.push_back(state_at(one.position));
  add(RecordEvent::Kind::kRan, std::move(event));
}

void RunRecorder::sends(const LogEntries& entries) {
  Position position = entries.first;
  for (const LogEntry& entry : entries.entries) {
    if (position++ != end_) continue;
    ++end_;
    const bool changes = entry.kind == LogEntry::Kind::kCommit || entry.kind == LogEntry::Kind::kRound;
    if (!changes) unchanging_.push_back(position - 1);
  }
  // A pull does not see a state that is so many entries old: servers are at most ChiefOptions::most_behind behind.
  constexpr std::size_t kMost = std::size_t{1} << 16;
  while (unchanging_.size() > kMost) {
    unchanging_.pop_front();
    ++dropped_;
  }
}

Position RunRecorder::state_at(Position position) const {
  const auto before = std::ranges::lower_bound(unchanging_, position);
  return position - begin_ - dropped_ - static_cast<Position>(before - unchanging_.begin());
}

}  // namespace lockstep::internal::server
