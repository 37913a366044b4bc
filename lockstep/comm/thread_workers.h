// Workers that are threads of one process: many workers in one test, without a network.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/timeouts.h"
#include "lockstep/comm/world.h"

namespace lockstep {

/// A group of workers, each of which is one thread of this process with its own strategies. It may be destroyed before
/// the worlds that it gave out.
class ThreadWorkers {
 public:
  /// Throws a UsageError for fewer than one worker. A call that waits for another worker longer than `patience` throws
  /// a PeerError.
  ///
  /// `hosts` says on which host each worker is taken to be: by worker, a number that the workers of one host share.
  /// Only they then have memory in common. Empty: all are on one host. Throws a UsageError where it has another size.
  explicit ThreadWorkers(int64_t workers, std::chrono::milliseconds patience = std::chrono::seconds(30),
                         std::vector<int64_t> hosts = {});
  /// With all times of a wait; `.join` and `.lost` mean nothing here.
  ThreadWorkers(int64_t workers, const WorkerTimeouts& timeouts, std::vector<int64_t> hosts = {});
  ~ThreadWorkers();
  ThreadWorkers(const ThreadWorkers&) = delete;
  ThreadWorkers& operator=(const ThreadWorkers&) = delete;

  int64_t size() const;
  /// The world as worker `index` sees it. When the last copy of the pointer is destroyed, the worker is gone, and the
  /// other workers' calls throw. Ask for each worker once. Throws a UsageError for an index outside of [0, size()).
  std::shared_ptr<World> world(int64_t index) const;

 private:
  class Hub;
  std::shared_ptr<Hub> hub_;
};

}  // namespace lockstep
