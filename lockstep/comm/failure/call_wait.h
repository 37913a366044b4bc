// How long one call of a World has waited for other workers, and what follows from it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/timeouts.h"

namespace lockstep::internal::inline comm {

class SeenPhases;

/// "worker 2 has not come to call 17; worker 2 is in step 3, for 31 s", and in which call of the program this thread
/// waits for it: `what` is "come to" or "finished". `workers` is not empty; of many, the phases of the first ones are
/// told.
std::string missing_text(const std::vector<int64_t>& workers, const char* what, uint64_t call,
                         const SeenPhases& phases);

/// Counts the time of one wait in slices, so that a process or a machine that stood still for a while gives nobody up.
/// A slice in which all missing workers were at work counts as work, and any other one as silence: each has its bound,
/// so that a wait ends after the sum of both at the latest.
class CallWait {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Verdict { kGoOn, kWarn, kGiveUp };

  explicit CallWait(const WorkerTimeouts& timeouts)
      : timeouts_(timeouts),
        slice_(std::clamp<Clock::duration>(timeouts.patience / 20, std::chrono::milliseconds(1),
                                           std::chrono::milliseconds(250))) {}

  /// What to do now. Warns after each time `stalled`, and gives up after the patience, or after the limit of the work
  /// for which it waits. `limit_of_work()`, which is asked once in a slice, is SeenPhases::limit_of_work of those who
  /// have not come.
  template <class LimitOfWork>
  Verdict count(const LimitOfWork& limit_of_work) {
    const Clock::time_point now = Clock::now();
    slice_so_far_ += std::min(now - last_, 2 * slice_);
    last_ = now;
    if (slice_so_far_ < slice_) return Verdict::kGoOn;
    const std::optional<std::chrono::milliseconds> limit = limit_of_work();
    (limit ? worked_ : silent_) += std::exchange(slice_so_far_, Clock::duration::zero());
    work_ends_it_ = limit && worked_ >= *limit;
    if (work_ends_it_ || silent_ >= timeouts_.patience) return Verdict::kGiveUp;
    if (waited() < warn_at_) return Verdict::kGoOn;
    warn_at_ = waited() + timeouts_.stalled;
    return Verdict::kWarn;
  }
  /// How long to sleep at most before the next count().
  Clock::duration longest_sleep() const {
    return std::max<Clock::duration>(slice_ - slice_so_far_, std::chrono::microseconds(1));
  }
  double seconds() const { return std::chrono::duration<double>(waited()).count(); }
  /// Of those, how many it did not wait for work.
  double silent_seconds() const { return std::chrono::duration<double>(silent_).count(); }
  /// Which option bounds a wait that was given up.
  const char* bound() const {
    return work_ends_it_ ? "others wait for work no longer: the bound is .limit of that call, otherwise .timeouts.work"
                         : "the bound is .timeouts.patience";
  }

 private:
  Clock::duration waited() const { return worked_ + silent_ + slice_so_far_; }

  const WorkerTimeouts& timeouts_;
  const Clock::duration slice_;
  Clock::duration slice_so_far_ = {};
  Clock::duration worked_ = {};
  Clock::duration silent_ = {};
  bool work_ends_it_ = false;
  Clock::duration warn_at_ = timeouts_.stalled;
  Clock::time_point last_ = Clock::now();
};

}  // namespace lockstep::internal::comm
