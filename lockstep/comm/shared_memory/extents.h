// Memory for values, in a file that all workers of a host map, behind what they need to meet.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/host_memory.h"
#include "lockstep/core/process/file_descriptor.h"

namespace lockstep::internal::inline comm {

/// The file grows with each call, by pages that the system has given, so that no write meets memory that is not there.
/// All workers make the same calls, so each knows where in the file the memory lies, and nothing has to be sent. The
/// last worker that lets go of it gives its pages back.
class Extents final : public HostMemory {
 public:
  /// `file` was made by SharedMemory, and its first `begin` bytes are taken; it stays the caller's. `workers` map it:
  /// see HostMemory::workers(). A ClusterError (LS-CLUSTER-MEMORY) where the system opens no file any more.
  Extents(int file, std::size_t begin, std::vector<int64_t> workers);

  std::vector<int64_t> workers() const override { return workers_; }

  std::shared_ptr<std::byte> allocate(std::size_t bytes) override;
  uint64_t calls() const override { return calls_; }

 private:
  const std::shared_ptr<const FileDescriptor> file_;  // what allocate() has given may outlive this object
  const std::vector<int64_t> workers_;
  off_t next_;
  uint64_t calls_ = 0;
};

}  // namespace lockstep::internal::comm
