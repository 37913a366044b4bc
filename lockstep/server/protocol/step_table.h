// The chief's steps that are not all decided: for each number its state.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "lockstep/server/protocol/messages.h"

namespace lockstep::internal::inline server {

enum class StepState : uint8_t {
  kFree,     // nobody has scheduled the number
  kWaiting,  // to be given, perhaps after other steps
  kGiven,    // a worker has it
  kReady,    // a part of a round: done, and not decided
  kCounted,
  kClosed,
};

/// What the chief knows of one number.
struct StepRecord {
  StepState state = StepState::kFree;
  uint32_t kind = 0;
  uint32_t gives = 0;     // how often it was given; the last attempt is this less 1
  uint32_t returned = 0;  // how often a worker has not begun it, because it had no more data
  WorkerId owner = {};
  uint32_t unmet = 0;     // steps before it that have no result yet
  Position position = 0;  // that its pulls have to see, for what was scheduled before it
  uint64_t argument_bytes = 0;
  Payload arguments = {};
  Payload rates = {};
  std::vector<int64_t> dependents = {};
  std::vector<int32_t> owners = {};  // all workers that it was given to
  // Of kReady.
  bool apply = true;
  double coefficient = 1;
  Payload result = {};
  auto operator<=>(const StepRecord&) const = default;

  bool is_decided() const { return state == StepState::kCounted || state == StepState::kClosed; }
  uint32_t last_attempt() const { return gives - 1; }
};

/// Records from the floor on, below which all numbers are decided. Invariant: the record at the floor is not decided.
class StepTable {
 public:
  explicit StepTable(int64_t floor) : floor_(floor) {}

  int64_t floor() const { return floor_; }
  /// One above the highest number that has a record.
  int64_t end() const { return floor_ + static_cast<int64_t>(records_.size()); }
  bool has(int64_t step) const { return step >= floor_ && step < end(); }
  bool is_decided(int64_t step) const { return step < floor_ || (step < end() && (*this)[step].is_decided()); }
  StepRecord& operator[](int64_t step) { return records_[static_cast<std::size_t>(step - floor_)]; }
  const StepRecord& operator[](int64_t step) const { return records_[static_cast<std::size_t>(step - floor_)]; }
  /// The record of a number at or above the floor, which is made where it is not there.
  StepRecord& make(int64_t step) {
    while (step >= end()) records_.emplace_back();
    return (*this)[step];
  }
  /// A number is decided. The floor moves, so records below it are gone.
  void decide(int64_t step, StepState state) {
    StepRecord& record = (*this)[step];
    record = {.state = state};
    while (!records_.empty() && records_.front().is_decided()) {
      records_.pop_front();
      ++floor_;
    }
  }

  auto operator<=>(const StepTable&) const = default;

 private:
  int64_t floor_;
  std::deque<StepRecord> records_;
};

}  // namespace lockstep::internal::server
