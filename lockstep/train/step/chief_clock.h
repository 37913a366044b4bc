// After which steps of a fit the chief's clock is asked whether something is due.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lockstep::internal::inline train {

/// The answer goes to all workers in a round, so that it is asked for about twenty times a second, and not after each
/// step; but at least after each kMostSteps steps. All workers ask after the same ones, because the chief also tells
/// when it is asked next.
class ChiefClock {
 public:
  static constexpr int64_t kMostSteps = 32;

  bool is_due(int64_t step) const { return step >= next_; }
  /// What the chief tells after `step`, `seconds` after the fit began: in how many steps it is asked next.
  int64_t next_in(int64_t step, double seconds) const {
    constexpr double kBetween = 0.05;  // seconds
    const auto steps = static_cast<double>(step - asked_step_);
    if (!(steps > 0 && seconds > asked_at_)) return 1;
    const double most = std::min(2 * steps, static_cast<double>(kMostSteps));  // the next ones may be slower
    return static_cast<int64_t>(std::clamp(kBetween / (seconds - asked_at_) * steps, 1.0, most));
  }
  /// It was asked, and has told `next_in`.
  void asked(int64_t step, double seconds, int64_t next_in) {
    next_ = step + next_in;
    asked_step_ = step;
    asked_at_ = seconds;
  }

 private:
  int64_t next_ = 0;
  int64_t asked_step_ = 0;
  double asked_at_ = 0;
};

}  // namespace lockstep::internal::train
