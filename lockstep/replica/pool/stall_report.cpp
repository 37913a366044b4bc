// What a replica pool reports when its replicas wait for long: which replicas wait where, and which are missing.
#include <fmt/format.h>

#include <chrono>
#include <ctime>
#include <string>

#include "lockstep/core/log.h"
#include "lockstep/replica/pool/replica_pool.h"

namespace lockstep::internal::inline replica {

namespace {

int64_t now_in_milliseconds() {
  using std::chrono::steady_clock;
  return std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace

int64_t coarse_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return int64_t{1000} * now.tv_sec + now.tv_nsec / 1'000'000;
}

std::chrono::milliseconds ReplicaPool::look_from_first_turn() const {
  using std::chrono::milliseconds;
  if (!running()) return stall_interval();
  const milliseconds run(coarse_now() - run_began_.load(std::memory_order_relaxed));
  if (const auto left = left_until_stall(run, stall_interval())) return *left;
  stalled();
  return stall_interval();
}

void ReplicaPool::stalled() const {
  const int64_t now = now_in_milliseconds();
  int64_t last = last_report_.load(std::memory_order_relaxed);
  // Several threads wake up for the same stall; half an interval tells them from the next one.
  if (last != 0 && now - last < stall_interval().count() / 2) return;
  if (last_report_.compare_exchange_strong(last, now, std::memory_order_relaxed)) report_stall();
}

void ReplicaPool::report_stall() const {
  std::string waiting;
  std::string missing;
  for (std::size_t r = 0; r < replicas_.size(); ++r) {
    const Replica& replica = replicas_[r];
    const Progress progress = replica.now();
    if (progress == Progress::kReturned || progress == Progress::kFailed) continue;
    std::string& list = progress == Progress::kRunning ? missing : waiting;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", first_ + static_cast<int64_t>(r));
    if (progress == Progress::kWaiting) {
      list += fmt::format(" (at {}, meeting {})", replica.at.load(std::memory_order_relaxed),
                          replica.meetings.load(std::memory_order_relaxed));
    } else if (progress == Progress::kNotStarted) {
      list += fmt::format(" (for its first turn on lane {})",
                          plan_.names[static_cast<std::size_t>(plan_.lane_of(static_cast<int64_t>(r)))]);
    }
  }
  log(LogLevel::kWarning, fmt::format("replicas have waited for {} s or longer. Waiting: {}. Not arrived: {}",
                                      stall_interval().count() / 1000, waiting.empty() ? "none" : waiting,
                                      missing.empty() ? "none" : missing));
}

}  // namespace lockstep::internal::replica
