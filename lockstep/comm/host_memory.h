// Memory that all workers of a host map: what a World may have where workers share a host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace lockstep {

/// One thread at a time calls it: the one that calls the World.
class HostMemory {
 public:
  virtual ~HostMemory() = default;

  /// The workers that map it, which are on this worker's host, in ascending order; this one is among them.
  virtual std::vector<int64_t> workers() const = 0;

  /// `bytes` bytes of new memory, which are zero, at a multiple of 4096. All workers of the run make the same calls in
  /// the same order. On each host, the n-th call of one worker gives the memory that the n-th call of each other worker
  /// gives, which asks for as many bytes. A call does not wait for the others. Each worker may have the memory at
  /// another address. What one worker writes into it before agree() or exchange(), or receives into it in exchange(),
  /// the others of its host may read after the same call has returned to them.
  ///
  /// The memory stays until all workers of the host have let go of the pointer, which may outlive the World. Nothing is
  /// left of it when the workers' processes have ended, however they end. A forked child must not touch it.
  ///
  /// Throws a ClusterError (LS-CLUSTER-MEMORY) where the system gives none. That call counts all the same.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;

  /// How many calls of allocate() this worker has made. Workers compare it before they share memory.
  virtual uint64_t calls() const = 0;
};

}  // namespace lockstep
