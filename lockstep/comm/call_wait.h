// How long one call of a World has waited for other workers, and what follows from it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/timeouts.h"

namespace lockstep::internal {

class SeenPhases;

/// "worker 2 has not come to call 17; worker 2 is in step 3, for 31 s": `what` is "come to" or "finished". `workers` is
/// not empty; of many, the phases of the first ones are told.
std::string missing_text(const std::vector<int64_t>& workers, const char* what, uint64_t call,
                         const SeenPhases& phases);

/// Counts the time of one wait in slices, so that a process or a machine that stood still for a while gives nobody up.
class CallWait {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Verdict { kGoOn, kWarn, kGiveUp };

  explicit CallWait(const WorkerTimeouts& timeouts)
      : timeouts_(timeouts), slice_(std::max<Clock::duration>(timeouts.patience / 20, std::chrono::milliseconds(1))) {}

  /// What to do now. Warns after each time `stalled`, and gives up after the patience.
  Verdict count() {
    const Clock::time_point now = Clock::now();
    waited_ += std::min(now - last_, 2 * slice_);
    last_ = now;
    if (waited_ >= timeouts_.patience) return Verdict::kGiveUp;
    if (waited_ < warn_at_) return Verdict::kGoOn;
    warn_at_ = waited_ + timeouts_.stalled;
    return Verdict::kWarn;
  }
  /// How long to sleep at most before the next count().
  Clock::duration longest_sleep() const {
    return std::max<Clock::duration>(std::min({slice_, timeouts_.patience - waited_, warn_at_ - waited_}),
                                     std::chrono::microseconds(1));
  }
  double seconds() const { return std::chrono::duration<double>(waited_).count(); }

 private:
  const WorkerTimeouts& timeouts_;
  const Clock::duration slice_;
  Clock::duration waited_ = {};
  Clock::duration warn_at_ = timeouts_.stalled;
  Clock::time_point last_ = Clock::now();
};

}  // namespace lockstep::internal
