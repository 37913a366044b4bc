#include "lockstep/server/local/step_clock.h"

#include <algorithm>
#include <utility>

namespace lockstep::internal::inline server {

using Clock = std::chrono::steady_clock;

StepClock::StepClock(std::chrono::milliseconds limit, Watched watched)
    : limit_(limit), watched_(std::move(watched)), thread_([this] { run(); }) {}

StepClock::~StepClock() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    has_ended_ = true;
  }
  ends_.notify_all();
  thread_.join();
}

void StepClock::run() {
  const auto pause =
      std::clamp<std::chrono::milliseconds>(limit_ / 8, std::chrono::milliseconds(1), std::chrono::milliseconds(1000));
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ends_.wait_for(lock, pause, [&] { return has_ended_; })) {
    lock.unlock();
    look();
    lock.lock();
  }
}

void StepClock::look() {
  const std::vector<std::optional<RunningStep>> running = watched_.running();
  told_.resize(running.size());
  const Clock::time_point now = Clock::now();
  bool are_all_stuck = !running.empty();
  for (std::size_t worker = 0; worker < running.size(); ++worker) {
    const auto& one = running[worker];
    const bool is_overdue = one && now - one->begin > limit_;
    are_all_stuck = are_all_stuck && is_overdue;
    if (!is_overdue || told_[worker] == one->step) continue;
    told_[worker] = one->step;
    watched_.overdue(static_cast<int32_t>(worker), one->step);
  }
  if (!are_all_stuck) {
    stuck_since_ = {};
  } else if (stuck_since_ == Clock::time_point()) {
    stuck_since_ = now;
  } else if (now - stuck_since_ > limit_) {
    stuck_since_ = now;
    watched_.all_stuck();
  }
}

}  // namespace lockstep::internal::server
