// Workers that are threads of one process: many workers in one test, without a network.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "lockstep/comm/world.h"

namespace lockstep {

/// A group of workers, each of which is one thread of this process with strategies of its own. It may be destroyed
/// before the worlds that it gave out.
class ThreadWorkers {
 public:
  /// A call that waits for another worker longer than `patience` is a PeerError.
  explicit ThreadWorkers(int64_t workers, std::chrono::milliseconds patience = std::chrono::seconds(30));
  ~ThreadWorkers();
  ThreadWorkers(const ThreadWorkers&) = delete;
  ThreadWorkers& operator=(const ThreadWorkers&) = delete;

  int64_t size() const;
  /// Worker `index`'s view. Where the last copy of it is destroyed the worker is gone: the others' calls then throw.
  /// Ask for each worker once; a UsageError for an index that is not there.
  std::shared_ptr<World> world(int64_t index) const;

 private:
  class Hub;
  std::shared_ptr<Hub> hub_;
};

}  // namespace lockstep
