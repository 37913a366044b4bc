// How far the other workers are with the calls, by their heartbeats.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace lockstep::internal::inline comm {

/// Any thread may call.
class SeenCalls {
 public:
  explicit SeenCalls(int64_t workers) : seen_(static_cast<std::size_t>(workers)) {}

  /// A worker has said to how many calls it has come, and for whom it waits in the last of them, or -1.
  void see(int64_t worker, uint64_t begun, int64_t waits_for) {
    const std::lock_guard<std::mutex> lock(mutex_);
    seen_[static_cast<std::size_t>(worker)] = {begun, waits_for};
  }
  /// Who keeps this worker from going on with a call: itself, where it has not come to it, or else the one for whom it
  /// waits. -1 where that is not known.
  int64_t who_holds_up(int64_t worker, uint64_t call) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Seen& seen = seen_[static_cast<std::size_t>(worker)];
    if (seen.begun < call) return worker;
    const bool is_worker = seen.waits_for >= 0 && seen.waits_for < static_cast<int64_t>(seen_.size());
    return seen.begun == call && is_worker ? seen.waits_for : -1;
  }

 private:
  struct Seen {
    uint64_t begun = 0;
    int64_t waits_for = -1;
  };

  mutable std::mutex mutex_;
  std::vector<Seen> seen_;  // by worker; guarded by mutex_
};

}  // namespace lockstep::internal::comm
