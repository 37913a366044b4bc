// What the time of a step went into, on the lanes of this worker.
#pragma once

#include <optional>

#include "lockstep/core/trace/recorder.h"
#include "lockstep/train/trainer.h"

namespace lockstep::internal::inline train {

/// Measures from begin() to end(), both outside of a step, and adds what the step's slices say. Where this process
/// records a trace it measures nothing: there is one recording at a time.
class PartsOfStep {
 public:
  PartsOfStep(FitStatus::Parts& sums, int lanes) : sums_(sums), lanes_(lanes) {}
  void begin();
  void end();

 private:
  FitStatus::Parts& sums_;
  const int lanes_;
  std::optional<TraceRecording> recording_;
};

}  // namespace lockstep::internal::train
