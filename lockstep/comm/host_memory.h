// Memory that all workers of a run map: what a World may have where all of its workers are on one host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace lockstep {

/// One thread at a time calls it: the one that calls the World.
class HostMemory {
 public:
  virtual ~HostMemory() = default;

  /// `bytes` bytes of new memory, which are zero, at a multiple of 4096. All workers make the same calls in the same
  /// order: the n-th call of one gives the memory that the n-th call of each other gives, which asks for as many bytes.
  /// A call does not wait for the others. Each worker may have the memory at another address. What one worker writes
  /// before agree() or exchange(), the others read after the same call has returned.
  ///
  /// The memory stays until all workers have let go of the pointer, which may outlive the World. Nothing is left of it
  /// when the workers' processes have ended, however they end. A forked child must not touch it.
  ///
  /// Throws a ClusterError (LS-CLUSTER-MEMORY) where the system gives none. That call counts all the same.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;

  /// How many calls of allocate() this worker has made. Workers compare it before they share memory.
  virtual uint64_t calls() const = 0;
};

}  // namespace lockstep
