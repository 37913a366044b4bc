#include "lockstep/comm/phase.h"
#include "lockstep/core/counted.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::internal {

namespace {

using Kind = WorkerPhase::Kind;

// From the lowest bit: kind (4 bits), whether it is at a meeting (1), meeting (16), nothing (3), step (40).
constexpr int kMeetingAt = 5;
constexpr int kStepAt = 24;
constexpr int64_t kMostMeetings = (int64_t{1} << 16) - 1;
constexpr int64_t kMostSteps = (int64_t{1} << 40) - 1;

}  // namespace

uint64_t encode(const WorkerPhase& phase) {
  return static_cast<uint64_t>(phase.kind) | uint64_t{phase.is_meeting} << 4 |
         static_cast<uint64_t>(std::clamp<int64_t>(phase.meeting, 0, kMostMeetings)) << kMeetingAt |
         static_cast<uint64_t>(std::clamp<int64_t>(phase.step, 0, kMostSteps)) << kStepAt;
}

WorkerPhase decode_phase(uint64_t word) {
  const uint64_t kind = word & 15;
  if (kind > static_cast<uint64_t>(Kind::kRestore)) return {};
  return {.kind = static_cast<Kind>(kind),
          .step = static_cast<int64_t>(word >> kStepAt),
          .meeting = static_cast<int64_t>(word >> kMeetingAt) & kMostMeetings,
          .is_meeting = (word >> 4 & 1) != 0};
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
  }
  return "before its first step";
}

}  // namespace lockstep::internal
