// When `lockstep train` saves.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "lockstep/lockstep.h"

namespace lockstep::tools {

/// All workers save after the same steps: where the time decides, the chief looks at it.
class CheckpointSchedule {
 public:
  /// "100" (steps), "90s", "10m", "2h", or empty: as often as saving takes at most one hundredth of the time. A
  /// UsageError for another text.
  explicit CheckpointSchedule(const std::string& every);

  /// Whether to save now, after `step` steps. All workers call it after each step.
  bool is_due(Strategy& strategy, int64_t step);
  /// A save has begun; `seconds` is what the one before it took.
  void saved(double seconds);

 private:
  using Clock = std::chrono::steady_clock;
  /// The chief's answer: 0 for a save now, otherwise after how many steps to look again.
  int64_t look(int64_t step);

  int64_t steps_ = 0;      // 0: the time decides
  double seconds_ = 0;     // 0: the cost decides
  double interval_ = 1;    // of now, in seconds
  int64_t next_look_ = 1;  // the step
  int64_t last_step_ = 0;  // of the last look
  Clock::time_point last_look_ = Clock::now();
  Clock::time_point last_save_ = Clock::now();
};

}  // namespace lockstep::tools
