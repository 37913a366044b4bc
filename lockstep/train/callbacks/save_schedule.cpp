#include "lockstep/train/callbacks/save_schedule.h"

#include <algorithm>

namespace lockstep::internal::inline train {

namespace {

constexpr double kShare = 0.01;  // of the time is what saves may cost
constexpr double kShortest = 1;  // seconds from save to save, however little one costs
constexpr double kUnknown = 60;  // the same where the cost of a save does not become known

}  // namespace

SaveSchedule::SaveSchedule(int64_t every_steps, double every_seconds, Clock::time_point now)
    : every_steps_(every_steps),
      every_seconds_(every_seconds),
      last_save_(now),
      interval_(every_seconds > 0 ? every_seconds : kShortest) {}

bool SaveSchedule::is_due_at(int64_t step) {
  if (every_steps_ == 0) return false;
  const int64_t before = seen_step_ < 0 ? step - 1 : std::min(seen_step_, step - 1);
  seen_step_ = step;
  return step / every_steps_ > before / every_steps_ && step != saved_step_;
}

bool SaveSchedule::is_due_by_clock(int64_t step, double last_save_seconds, Clock::time_point now) {
  if (step == saved_step_) return false;
  if (every_steps_ > 0 && every_seconds_ == 0) return false;
  if (every_seconds_ == 0 && seconds_before_ >= 0 && last_save_seconds != seconds_before_) {
    interval_ = std::max(kShortest, last_save_seconds / kShare);
    seconds_before_ = -1;
  }
  return std::chrono::duration<double>(now - last_save_).count() >= interval_;
}

void SaveSchedule::saved(int64_t step, double last_save_seconds, Clock::time_point now) {
  saved_step_ = step;
  last_save_ = now;
  if (every_seconds_ > 0) return;
  interval_ = std::max(kUnknown, last_save_seconds / kShare);
  seconds_before_ = last_save_seconds;
}

}  // namespace lockstep::internal::train
