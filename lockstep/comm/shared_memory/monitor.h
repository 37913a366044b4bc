// Which workers of a host are alive: heartbeats, and connections that break.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "lockstep/comm/failure/run_failure.h"
#include "lockstep/comm/failure/seen_phases.h"
#include "lockstep/comm/shared_memory/rendezvous.h"
#include "lockstep/comm/shared_memory/segment.h"
#include "lockstep/core/process/oom_kills.h"

namespace lockstep::internal::inline comm {

/// A thread that sends this worker's heartbeats and watches those of others: worker 0 watches all, and each other
/// worker watches worker 0. It ends the run in the name of this worker where another one is gone or frozen. The memory
/// keeps the first reason, so all workers report the same.
///
/// A worker is gone when its connection breaks: at once, however its process ended. It is frozen when it has sent no
/// heartbeat for `lost`, counted in this worker's own ticks, so that a machine or a process that stood still for a
/// while blames nobody.
class WorkerMonitor {
 public:
  /// `segment` outlives the monitor.
  WorkerMonitor(const Segment& segment, int64_t worker, std::vector<PeerConnection> peers,
                std::chrono::milliseconds lost);
  ~WorkerMonitor();
  WorkerMonitor(const WorkerMonitor&) = delete;
  WorkerMonitor& operator=(const WorkerMonitor&) = delete;

  /// What all workers do, as it stands in the memory now. Any thread.
  const SeenPhases& phases();
  /// A failure of worker `failed` as a reason to end the run, with what is known of that worker. Any thread.
  std::string failure_of(int64_t failed, PeerError::Noticed how, const std::string& text);

 private:
  void watch();
  void check_heartbeats();

  /// Ends the run because a worker is gone, in one of the ways in which its connection can break.
  void end_by(const PeerConnection& gone);

  struct Watched {
    PeerConnection peer;
    uint64_t heartbeats = 0;
    int silent_ticks = 0;
  };

  const Segment& segment_;
  const int64_t worker_;
  const std::chrono::milliseconds lost_;
  const std::chrono::milliseconds tick_;
  const OomWatch oom_watch_;
  SeenPhases phases_;
  std::vector<Watched> watched_;  // used by the thread only, as is the next one
  bool has_told_ = false;         // that the run has ended
  FileDescriptor stop_;           // an eventfd, which ends the thread
  std::thread thread_;
};

}  // namespace lockstep::internal::comm
