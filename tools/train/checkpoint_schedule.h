// When `lockstep train` saves.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "lockstep/lockstep.h"

namespace lockstep::tools {

/// All workers save after the same steps: where the time decides, the chief looks at it.
class CheckpointSchedule {
 public:
  using Clock = std::chrono::steady_clock;

  /// "100" (steps), "90s", "10m", "2h", or empty: as often as saving takes at most one hundredth of the time. A
  /// UsageError for another text.
  explicit CheckpointSchedule(const std::string& every, std::function<Clock::time_point()> now = Clock::now);

  /// Whether to save now, after `step` steps. All workers call it after each step. `last_save_seconds()` gives what the
  /// last save took that is durable, on the chief; where the cost decides, the next save comes only when that of the
  /// last one is known, and otherwise after a minute, or as long as the one before it asks for, because the last one
  /// may have failed.
  bool is_due(Strategy& strategy, int64_t step, const std::function<double()>& last_save_seconds);
  /// A save has begun, or has failed; `seconds` is what the one before it took.
  void saved(double seconds);
  /// In how many seconds after the last save the next one comes where its cost does not become known.
  double longest_wait() const { return interval_; }

 private:
  /// The chief's answer: 0 for a save now, otherwise after how many steps to look again.
  int64_t look(int64_t step, const std::function<double()>& last_save_seconds);

  const std::function<Clock::time_point()> now_;
  int64_t steps_ = 0;      // 0: the time decides
  double seconds_ = 0;     // 0: the cost decides
  double interval_ = 1;    // of now, in seconds
  double before_ = -1;     // what the save before the last one took, as long as the last one's cost is not known
  int64_t next_look_ = 1;  // the step
  int64_t last_step_ = 0;  // of the last look
  Clock::time_point last_look_ = now_();
  Clock::time_point last_save_ = now_();
};

}  // namespace lockstep::tools
