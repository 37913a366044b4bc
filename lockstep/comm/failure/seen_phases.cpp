#include "lockstep/comm/failure/seen_phases.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::internal::inline comm {

void SeenPhases::see(int64_t worker, uint64_t phase, Clock::time_point now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Seen& seen = seen_[static_cast<std::size_t>(worker)];
  if (seen.phase != phase) seen = {phase, now};
}

WorkerPhase SeenPhases::phase(int64_t worker) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return decode_phase(seen_[static_cast<std::size_t>(worker)].phase);
}

std::optional<std::chrono::milliseconds> SeenPhases::limit_of_work(const std::vector<int64_t>& workers,
                                                                   std::chrono::milliseconds usual) const {
  std::optional<std::chrono::milliseconds> least;
  for (const int64_t worker : workers) {
    const WorkerPhase does = phase(worker);
    if (!does.is_work()) return std::nullopt;
    const std::chrono::milliseconds limit = does.limit.count() > 0 ? does.limit : usual;
    least = least ? std::min(*least, limit) : limit;
  }
  return least;
}

std::string SeenPhases::describe(int64_t worker, Clock::time_point now) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Seen& seen = seen_[static_cast<std::size_t>(worker)];
  const std::string text = internal::describe(decode_phase(seen.phase));
  const auto age = std::chrono::floor<std::chrono::seconds>(now - seen.since).count();
  return age < 1 ? text : fmt::format("{}, for {} s", text, age);
}

}  // namespace lockstep::internal::comm
