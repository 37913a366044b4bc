// What a worker is doing, in one word that it can tell the others.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace lockstep {

/// Where a worker is in its program, as far as the library knows.
struct WorkerPhase {
  enum class Kind : uint8_t {
    kStarting = 0,    // it has joined, and has not begun a step
    kStep = 1,        // in `step`
    kEvaluation = 2,  // in an evaluation after `step` completed steps
    kCall = 3,        // in a call of all workers outside of steps; `step` steps are completed
    kBetween = 4,     // between steps; `step` is the last one that it was in
    kInput = 5,       // it waits for its next batch, between steps; `step` is the one to come
    kSave = 6,        // it saves a checkpoint; `step` steps are completed
    kRestore = 7,     // it restores one; `step` steps were completed before
    kOnChief = 8,     // it carries out the function of an on_chief; `step` steps are completed
    kFunction = 9,    // or another function that a call of all workers was given: a factory, an update
  };
  Kind kind = Kind::kStarting;
  int64_t step = 0;
  int64_t meeting = 0;  // of a step or evaluation: how many meetings it has come to
  bool is_meeting =
      false;  // its replicas have come to that meeting, or with meeting 0 to the end of the step; not over
  /// Of work: how long the others wait for it; 0: as their timeouts say. Work has no meetings.
  std::chrono::milliseconds limit = {};

  /// Whether it does what may take as long as it takes: it reads data or files, or code of the program's own runs. A
  /// worker that does is not silent, and WorkerTimeouts::work bounds the wait for it.
  bool is_work() const { return kind >= Kind::kInput; }
  bool operator==(const WorkerPhase&) const = default;
};

namespace internal::inline comm {

/// As one word, and back. Steps below 2^40 and meetings below 2^16 stay as they are; larger ones become the largest.
/// Limits up to 32 s stay as they are; longer ones get longer by less than a ten-thousandth.
/// decode_phase() takes any word: a kind that it does not know, of a later version perhaps, is kStarting.
uint64_t encode(const WorkerPhase& phase);
WorkerPhase decode_phase(uint64_t word);

/// Throws a UsageError unless it is 0, which is none, or one millisecond to 365 days.
void require_limit(std::chrono::milliseconds limit);

/// "in step 12, at its meeting 3", for a sentence about the worker.
std::string describe(const WorkerPhase& phase);

}  // namespace internal::comm
}  // namespace lockstep
