// Finds steps that run longer than their limit.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/server/protocol/messages.h"

namespace lockstep::internal::inline server {

/// A step's function that runs.
struct RunningStep {
  StepAttempt step = {};
  std::chrono::steady_clock::time_point begin = {};
};

/// Owns a thread that looks at all workers now and then, until it is destroyed.
class StepClock {
 public:
  struct Watched {
    std::function<std::vector<std::optional<RunningStep>>()> running;  // by worker
    std::function<void(int32_t worker, StepAttempt step)> overdue;     // once for each attempt
    /// All workers run steps that are overdue, and have for as long again: nobody is left to give a step to.
    std::function<void()> all_stuck;
  };
  StepClock(std::chrono::milliseconds limit, Watched watched);
  ~StepClock();
  StepClock(const StepClock&) = delete;
  StepClock& operator=(const StepClock&) = delete;

 private:
  void run();
  void look();

  const std::chrono::milliseconds limit_;
  const Watched watched_;
  std::vector<std::optional<StepAttempt>> told_;  // by worker; used by the thread
  std::chrono::steady_clock::time_point stuck_since_ = {};
  std::mutex mutex_;
  std::condition_variable ends_;
  bool has_ended_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace lockstep::internal::server
