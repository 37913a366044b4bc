#include "lockstep/comm/failure/phase.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline comm {

namespace {

using Kind = WorkerPhase::Kind;

// From the lowest bit: kind (4 bits), whether it is at a meeting (1), meeting (16), nothing (3), step (40). Of work
// stands between kind and step the limit, in milliseconds: a number (15) to be shifted by another one (5).
constexpr int kLimitAt = 4;
constexpr int kShiftAt = kLimitAt + 15;
constexpr uint64_t kMostOfLimit = (uint64_t{1} << 15) - 1;
constexpr int kMostShift = 31;
constexpr int kMeetingAt = 5;
constexpr int kStepAt = 24;
constexpr int64_t kMostMeetings = (int64_t{1} << 16) - 1;
constexpr int64_t kMostSteps = (int64_t{1} << 40) - 1;

uint64_t encode_limit(std::chrono::milliseconds limit) {
  const auto all = static_cast<uint64_t>(std::clamp<int64_t>(limit.count(), 0, int64_t{1} << 45));
  uint64_t number = all;
  uint64_t shift = 0;
  while (number > kMostOfLimit) {
    ++shift;
    number = (all + (uint64_t{1} << shift) - 1) >> shift;
  }
  return number << kLimitAt | shift << kShiftAt;
}

std::chrono::milliseconds decode_limit(uint64_t word) {
  const uint64_t number = word >> kLimitAt & kMostOfLimit;
  return std::chrono::milliseconds(number << (word >> kShiftAt & kMostShift));
}

}  // namespace

uint64_t encode(const WorkerPhase& phase) {
  const uint64_t both = static_cast<uint64_t>(phase.kind) |
                        static_cast<uint64_t>(std::clamp<int64_t>(phase.step, 0, kMostSteps)) << kStepAt;
  if (phase.is_work()) return both | encode_limit(phase.limit);
  return both | uint64_t{phase.is_meeting} << 4 |
         static_cast<uint64_t>(std::clamp<int64_t>(phase.meeting, 0, kMostMeetings)) << kMeetingAt;
}

WorkerPhase decode_phase(uint64_t word) {
  const uint64_t kind = word & 15;
  if (kind > static_cast<uint64_t>(Kind::kFunction)) return {};
  WorkerPhase phase{.kind = static_cast<Kind>(kind), .step = static_cast<int64_t>(word >> kStepAt)};
  if (phase.is_work()) {
    phase.limit = decode_limit(word);
  } else {
    phase.meeting = static_cast<int64_t>(word >> kMeetingAt) & kMostMeetings;
    phase.is_meeting = (word >> 4 & 1) != 0;
  }
  return phase;
}

void require_limit(std::chrono::milliseconds limit) {
  if (limit.count() >= 0 && limit <= std::chrono::hours(365 * 24)) return;
  throw UsageError("LS-OPTION", fmt::format(".limit is {} ms", limit.count()),
                   "give one millisecond to 365 days, or 0 for .timeouts.work");
}

std::string describe(const WorkerPhase& phase) {
  std::string meeting;
  if (phase.meeting > 0) meeting = fmt::format(", {} its meeting {}", phase.is_meeting ? "at" : "after", phase.meeting);
  if (phase.meeting == 0 && phase.is_meeting) meeting = ", at its end";
  switch (phase.kind) {
    case Kind::kStarting: break;
    case Kind::kStep: return fmt::format("in step {}{}", phase.step, meeting);
    case Kind::kEvaluation:
      return fmt::format("in an evaluation after {}{}", internal::counted(phase.step, "step"), meeting);
    case Kind::kCall: return fmt::format("in a call of all workers after {}", internal::counted(phase.step, "step"));
    case Kind::kBetween: return fmt::format("between steps, after step {}", phase.step);
    case Kind::kInput: return fmt::format("waiting for its input, before step {}", phase.step);
    case Kind::kSave: return fmt::format("saving a checkpoint after {}", internal::counted(phase.step, "step"));
    case Kind::kRestore: return fmt::format("restoring a checkpoint after {}", internal::counted(phase.step, "step"));
    case Kind::kOnChief: return fmt::format("at work in on_chief after {}", internal::counted(phase.step, "step"));
    case Kind::kFunction:
      return fmt::format("at work in a function of the program after {}", internal::counted(phase.step, "step"));
  }
  return "before its first step";
}

}  // namespace lockstep::internal::comm
