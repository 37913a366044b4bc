// What the other workers are doing, and for how long, as this one has seen it.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/failure/phase.h"

namespace lockstep::internal::inline comm {

/// Ages are counted by this worker's own clock, from the moment in which it saw a phase first. Any thread may call.
class SeenPhases {
 public:
  using Clock = std::chrono::steady_clock;

  explicit SeenPhases(int64_t workers) : seen_(static_cast<std::size_t>(workers)) {}

  /// A worker has said that this is its phase, as encode() gives it.
  void see(int64_t worker, uint64_t phase, Clock::time_point now = Clock::now());
  WorkerPhase phase(int64_t worker) const;
  /// How long these workers are waited for where all of them are at work: the least of their limits, where a worker
  /// without one has `usual`. Nothing where one of them is not at work, or where there is none.
  std::optional<std::chrono::milliseconds> limit_of_work(const std::vector<int64_t>& workers,
                                                         std::chrono::milliseconds usual) const;
  /// "in step 12, at its meeting 3, for 31 s"; the time stands there from one second on.
  std::string describe(int64_t worker, Clock::time_point now = Clock::now()) const;

 private:
  struct Seen {
    uint64_t phase = 0;
    Clock::time_point since = Clock::now();
  };

  mutable std::mutex mutex_;
  std::vector<Seen> seen_;  // by worker; guarded by mutex_
};

}  // namespace lockstep::internal::comm
