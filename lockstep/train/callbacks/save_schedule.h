// When a fit saves: by steps, by time, or as often as a hundredth of the time allows.
#pragma once

#include <chrono>
#include <cstdint>

namespace lockstep::internal::inline train {

class SaveSchedule {
 public:
  using Clock = std::chrono::steady_clock;

  /// 0 for what does not decide; `now` is the present time.
  SaveSchedule(int64_t every_steps, double every_seconds, Clock::time_point now);

  /// Whether to save after `step`, by the steps alone: a multiple of `every_steps` was reached since the last call. The
  /// steps of parameter servers may go on by several from one call to the next. All workers give the same.
  bool is_due_at(int64_t step);
  /// Whether to save after `step`, by the time. `last_save_seconds` is what the last save has cost, or 0 while that is
  /// not known.
  bool is_due_by_clock(int64_t step, double last_save_seconds, Clock::time_point now);
  /// A save after `step` has begun, or has failed.
  void saved(int64_t step, double last_save_seconds, Clock::time_point now);

 private:
  const int64_t every_steps_;
  const double every_seconds_;
  Clock::time_point last_save_;
  int64_t saved_step_ = -1;
  int64_t seen_step_ = -1;      // of the last call of is_due_at()
  double seconds_before_ = -1;  // what the save before the last one has cost, while the last one's cost is not known
  double interval_;             // seconds from save to save
};

}  // namespace lockstep::internal::train
