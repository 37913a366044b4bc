// Memory that several processes map.
#pragma once

#include <cstddef>

#include "lockstep/core/process/file_descriptor.h"
#include "lockstep/core/process/forks.h"

namespace lockstep::internal::inline comm {

/// One mapping of a file without a name. The file is gone when the last process that maps it or holds it has ended,
/// however it ends. A forked child does not map it, and a program that is started does not get the file.
class SharedMemory {
 public:
  /// New memory, all zeros. Nobody can cut its file any more; it may grow, behind this memory. A ClusterError
  /// (LS-CLUSTER-MEMORY) where the system gives none.
  static SharedMemory create(std::size_t length);
  /// Maps memory that create() made in another process; `file` stays the caller's, and is kept open here. A
  /// ClusterError (LS-CLUSTER-MEMORY) where it is not such memory of at least this length.
  static SharedMemory map(int file, std::size_t length);
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;

  /// To be given to other processes; -1 after close_file().
  int file() const { return file_.get(); }
  /// The memory stays mapped.
  void close_file() { file_.close(); }
  std::byte* data() const { return data_; }
  std::size_t length() const { return length_; }

 private:
  SharedMemory(FileDescriptor file, std::byte* data, std::size_t length);

  ProcessMark process_;
  FileDescriptor file_;
  std::byte* data_ = nullptr;
  std::size_t length_ = 0;
};

}  // namespace lockstep::internal::comm
