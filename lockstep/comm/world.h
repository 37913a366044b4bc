// The workers of a run and how they exchange values. The rest of the library reaches other workers in this way only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/failure/phase.h"
#include "lockstep/comm/host_memory.h"
#include "lockstep/comm/windows.h"

namespace lockstep {

/// The workers of a run, as one of them sees it. A worker is a process; in tests it may be a thread.
///
/// Workers make the same calls in the same order: the n-th call of one meets the n-th call of each other. One thread at
/// a time calls agree(), exchange(), host_memory() and windows(); any thread may call abort() at any time. Every wait
/// is bounded: a call throws a PeerError that names the worker where another worker does not come in time, is gone, or
/// has aborted. After that every later call throws the same. Calls that do not fit together, as agree() and exchange(),
/// are such an error too.
///
/// Whoever destroys its World is gone. It may do so as soon as its last call has returned: that call of the others
/// then returns as well.
///
/// lockstep/testing/world_conformance.h tests whether a World keeps all of this.
class World {
 public:
  virtual ~World() = default;

  virtual int64_t num_workers() const = 0;
  /// From 0; worker 0 is the chief.
  virtual int64_t worker_index() const = 0;

  /// Returns every worker's record, by worker, when all have given theirs. Records are short and say what is about to
  /// happen. All workers read the same records and decide by a pure function, and so all decide alike.
  virtual std::vector<std::string> agree(const std::string& mine) = 0;

  /// Sends `to[w]` to worker w and fills `from[w]` with the bytes that worker w sends to this one, for every other
  /// worker w; the entries of this worker itself are ignored. Workers have agreed on the sizes before: the call throws
  /// a PeerError where `from[w]` has another size than the bytes that worker w sends. The memory belongs to the caller,
  /// who may use it again when the call returns or throws. No memory of `from` overlaps memory of `to`. Both have an
  /// entry for each worker.
  virtual void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) = 0;

  /// What gives memory that all workers of this worker's host map, where the World has it; otherwise null, and then on
  /// all workers. Owned by the World.
  virtual HostMemory* host_memory() { return nullptr; }

  /// What lets bytes travel while workers compute, where the World has it; otherwise null. The same answer on all
  /// workers. Owned by the World.
  virtual Windows* windows() { return nullptr; }

  /// What moves the bytes and who may read them on their way, in one line for a reader. Any thread may call.
  virtual std::string describe() const { return "a World of the program's own"; }

  /// Lets the others know what this worker does now, for messages about it: who has not come, who was lost. Costs no
  /// more than a store to memory and waits for nobody; the others may learn it a moment later, or never. One thread at
  /// a time calls it. Others wait for a worker that is at work (WorkerPhase::is_work) as long as the phase's limit
  /// says, or as it is usual, and not as long as for one of which they do not know what keeps it.
  virtual void set_phase(const WorkerPhase& phase) noexcept { static_cast<void>(phase); }

  /// Throws the PeerError with which the run has ended, where it has. Does not wait. Any thread may call.
  virtual void require_running() const {}

  /// Ends the run for all workers: their calls, also those that wait, throw a PeerError with this worker's index and
  /// `reason`. The first reason stays. Does not wait.
  virtual void abort(const std::string& reason) noexcept = 0;
};

namespace internal::inline comm {
/// The world of a process that is the only worker.
std::shared_ptr<World> one_worker();

/// A UsageError where exchange() was not given an entry for each worker.
void require_one_for_each_worker(std::size_t to, std::size_t from, int64_t workers);
}  // namespace internal::comm

}  // namespace lockstep
