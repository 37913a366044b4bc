// What the thread that makes a World's calls and the thread that watches the other workers share.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "lockstep/comm/network/end_of_run.h"
#include "lockstep/core/process/file_descriptor.h"

namespace lockstep::internal::inline comm {

/// How far a worker's calls are, and whether the run has ended. Every member may be called on any thread.
class NetworkRunState {
 public:
  /// A ClusterError (LS-CLUSTER-SOCKET) where the system gives no event.
  NetworkRunState();

  /// This worker has come to `call`. False where it is frozen: then it sends nothing, and end() comes.
  bool begin(uint64_t call);
  /// This worker has all that the others sent in `call`. False where it is frozen: then end() comes, and decides.
  bool take(uint64_t call);
  /// All workers have taken `call`. False as before.
  bool finish(uint64_t call);
  Calls calls() const;
  /// What this worker does, as encode(WorkerPhase) gives it.
  void set_phase(uint64_t phase) { phase_.store(phase, std::memory_order_relaxed); }
  uint64_t phase() const { return phase_.load(std::memory_order_relaxed); }
  /// For whom this worker waits in its call, as far as it knows; -1: nobody. The others learn it by its heartbeats.
  void set_waits_for(int64_t worker) { waits_for_.store(worker, std::memory_order_relaxed); }
  int64_t waits_for() const { return waits_for_.load(std::memory_order_relaxed); }
  /// Nothing is taken or finished after this. How far this worker is.
  Calls freeze();
  /// The first end stays.
  void set_end(const RunEnd& end);
  std::optional<RunEnd> end() const;

  /// Readable for poll() once the run has ended.
  int event() const { return event_.get(); }

 private:
  std::atomic<uint64_t> phase_ = 0;
  std::atomic<int64_t> waits_for_ = -1;
  mutable std::mutex mutex_;
  Calls calls_;  // guarded by mutex_, as are those below
  bool is_frozen_ = false;
  std::optional<RunEnd> end_;
  const FileDescriptor event_;  // an eventfd
};

}  // namespace lockstep::internal::comm
