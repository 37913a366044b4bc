// What a chief does to record its run: it turns messages and calls into events of the record.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "lockstep/server/protocol/chief_machine.h"
#include "lockstep/server/protocol/messages.h"
#include "lockstep/server/record/run_record.h"

namespace lockstep::internal::inline server {

/// Of one call of coordinate(). The chief calls it under its own lock, in the order in which things happen.
class RunRecorder {
 public:
  /// `begin` is the position of the log at which the run begins.
  RunRecorder(std::shared_ptr<RecordFile> file, Position begin) : file_(std::move(file)), begin_(begin), end_(begin) {}

  /// The program is about to schedule a step, after so many calls that may have changed values.
  void schedules(uint64_t writes);
  /// What the chief sends, and which steps it has closed.
  void take(const ChiefOutput& out);
  /// A report has come, whose attempt may count or not.
  void reports(const StepReport& report, bool may_count);
  void cancels() { add(RecordEvent::Kind::kCancelled, {}); }
  void completes_round() { add(RecordEvent::Kind::kRoundCompleted, {}); }
  /// The program has read values to which so many steps, or rounds, were applied.
  void reads(Position state) { add(RecordEvent::Kind::kRead, {.state = state}); }
  void end() { file_->end_run(); }

 private:
  /// Entries of the log go to a server; those that were sent before are passed over.
  void sends(const LogEntries& entries);
  void add(RecordEvent::Kind kind, RecordEvent event);
  Position state_at(Position position) const;

  const std::shared_ptr<RecordFile> file_;
  int64_t scheduled_ = 0;
  uint64_t writes_ = 0;
  std::map<StepAttempt, uint32_t> functions_ = {};  // of attempts that have no report
  // The log: a state is how many of its entries change values. Those that do not are few, or old.
  const Position begin_;
  Position end_;
  Position dropped_ = 0;  // how many do not, of those that are not in `unchanging_`
  std::deque<Position> unchanging_ = {};
};

}  // namespace lockstep::internal::server
