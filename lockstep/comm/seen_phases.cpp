#include "lockstep/comm/seen_phases.h"

#include <fmt/format.h>

namespace lockstep::internal {

void SeenPhases::see(int64_t worker, uint64_t phase, Clock::time_point now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Seen& seen = seen_[static_cast<std::size_t>(worker)];
  if (seen.phase != phase) seen = {phase, now};
}

WorkerPhase SeenPhases::phase(int64_t worker) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return decode_phase(seen_[static_cast<std::size_t>(worker)].phase);
}

std::string SeenPhases::describe(int64_t worker, Clock::time_point now) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Seen& seen = seen_[static_cast<std::size_t>(worker)];
  const std::string text = internal::describe(decode_phase(seen.phase));
  const auto age = std::chrono::floor<std::chrono::seconds>(now - seen.since).count();
  return age < 1 ? text : fmt::format("{}, for {} s", text, age);
}

}  // namespace lockstep::internal
