// The file behind cache(path): samples that were read once, in the order in which they were first read.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/process/file_descriptor.h"
#include "lockstep/data/batch.h"

namespace lockstep::internal {

/// A head that names the data, then records that are appended: number, length, checksum, bytes. A record that was cut
/// off, by a full disk or the end of a process, is dropped when the file is opened. Any thread.
class CacheFile {
 public:
  /// Opens or makes the file. Throws a DataError where it cannot be opened or holds other data than `digest` and `size`
  /// say. Where another process uses it, is_open() is false.
  CacheFile(std::string path, uint64_t digest, int64_t size);

  bool is_open() const { return file_.get() >= 0; }
  /// The sample, where the file has it whole.
  std::optional<Batch> read(int64_t id) const;
  /// Adds a sample. Where the disk takes no more, a warning is logged once, and nothing is added from then on.
  void add(int64_t id, const Batch& sample);

 private:
  struct Place {
    int64_t offset = -1;  // of the bytes
    int64_t length = 0;
    uint64_t checksum = 0;
  };
  void begin(uint64_t digest, int64_t size);
  void find_records(int64_t length);

  const std::string path_;
  FileDescriptor file_;
  mutable std::mutex mutex_;
  std::vector<Place> places_;  // by sample; guarded by mutex_
  int64_t end_ = 0;            // behind the last whole record; guarded by mutex_
  bool full_ = false;          // guarded by mutex_
};

}  // namespace lockstep::internal
