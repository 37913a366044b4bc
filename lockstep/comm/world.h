// Who takes part in a run, and how they talk: the one way to other workers that the rest of the library knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

/// The workers of a run, as one of them sees it. A worker is a process; in tests it may be a thread.
///
/// Workers make the same calls in the same order: the n-th call of one meets the n-th call of each other. One thread at
/// a time calls agree() and exchange(); abort() is for any thread at any time. Every wait is bounded: a call throws
/// PeerError, naming the worker, where another one does not come in time, is gone, or has aborted. After that each
/// later call throws the same.
class World {
 public:
  virtual ~World() = default;

  virtual int64_t num_workers() const = 0;
  /// From 0; worker 0 is the chief.
  virtual int64_t worker_index() const = 0;

  /// Every worker's record, by worker, after all have given theirs. For short records that say what is about to happen:
  /// whoever reads them decides by a pure function, and so all workers decide alike.
  virtual std::vector<std::string> agree(const std::string& mine) = 0;

  /// Sends `to[w]` to worker w and fills `from[w]` with what w sends here, for all w; entries of this worker itself are
  /// not looked at. Sizes were agreed upon: `from[w]` here has the size of `to[this worker]` there, otherwise a
  /// PeerError. Memory belongs to the caller and is free again when the call returns.
  virtual void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) = 0;

  /// Ends the run for all workers: their calls, those that wait included, throw a PeerError with this worker's index
  /// and `reason`. The first reason stays. Does not wait.
  virtual void abort(const std::string& reason) noexcept = 0;
};

namespace internal {
/// The world of a process that is alone.
std::shared_ptr<World> one_worker();
}  // namespace internal

}  // namespace lockstep
