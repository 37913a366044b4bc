// What a worker is doing, in one word that it can tell the others.
#pragma once

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
  };
  Kind kind = Kind::kStarting;
  int64_t step = 0;
  int64_t meeting = 0;  // of a step or evaluation: how many meetings it has come to
  bool is_meeting =
      false;  // its replicas have come to that meeting, or with meeting 0 to the end of the step; not over

  bool operator==(const WorkerPhase&) const = default;
};

namespace internal {

/// As one word, and back. Steps below 2^40 and meetings below 2^16 stay as they are; larger ones become the largest.
/// decode_phase() takes any word: a kind that it does not know, of a later version perhaps, is kStarting.
uint64_t encode(const WorkerPhase& phase);
WorkerPhase decode_phase(uint64_t word);

/// "in step 12, at its meeting 3", for a sentence about the worker.
std::string describe(const WorkerPhase& phase);

}  // namespace internal
}  // namespace lockstep
