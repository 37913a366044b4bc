// How many runs a strategy has completed, and which random streams belong to the run under way.
#pragma once

#include <cstdint>

#include "lockstep/core/ids.h"
#include "lockstep/replica/random_streams.h"

namespace lockstep::internal::inline replica {

/// What one call of run() or evaluate() is.
enum class RunMode : uint8_t { kStep, kEvaluate };

/// Written by the thread that holds the strategy's CallScope, between runs; read by the replicas of a run.
struct RunState {
  uint64_t seed = 0;
  int64_t step = 0;         // completed runs
  int64_t evaluations = 0;  // completed since the last step; each draws from separate streams
  RunMode mode = RunMode::kStep;
  bool running = false;

  bool evaluates() const { return mode == RunMode::kEvaluate; }

  // The streams of the run under way. Invariant: the streams of steps do not depend on evaluations.
  StreamKey stream_of(ReplicaId replica) const {
    return key(evaluates() ? StreamPurpose::kEvaluate : StreamPurpose::kReplica, replica);
  }
  StreamKey shared_stream() const {
    return key(evaluates() ? StreamPurpose::kEvaluateShared : StreamPurpose::kShared, 0);
  }
  StreamKey merge_stream() const { return key(evaluates() ? StreamPurpose::kEvaluateMerge : StreamPurpose::kMerge, 0); }

  /// Counts the run under way as completed.
  void count() {
    if (evaluates()) {
      ++evaluations;
    } else {
      ++step;
      evaluations = 0;
    }
  }

 private:
  StreamKey key(StreamPurpose purpose, int64_t replica) const {
    return {seed, purpose, replica, step, evaluates() ? evaluations : 0};
  }
};

}  // namespace lockstep::internal::replica
