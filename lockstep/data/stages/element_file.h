// The file behind cache(path): elements of a stream, or samples of a data set.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/process/file_descriptor.h"
#include "lockstep/core/process/forks.h"
#include "lockstep/data/batch.h"
#include "lockstep/data/stages/elements.h"

namespace lockstep::internal::inline data {

/// Which data a file is of.
struct CacheKey {
  static constexpr int64_t kStream = -1;
  uint64_t digest = 0;
  int64_t size = kStream;  // samples of a data set; those of a stream are counted at its end
};

/// A file that has all elements. It begins with a head that names the data. Records follow: number, length and checksum
/// of an element, and its bytes. The places of all records are at the end. Nobody writes the file any more, so any
/// number of processes read it, without a lock.
class ElementFile final : public Elements {
 public:
  /// Null where there is no such file, where it is of an older format, and where it does not have all samples of a data
  /// set yet: ElementRecording::resume() takes it up. Throws a DataError where it cannot be read, holds other data, or
  /// is a stream's and is damaged.
  static std::shared_ptr<const ElementFile> open(const std::string& path, const CacheKey& key);

  int64_t size() const override { return static_cast<int64_t>(places_.size()); }
  std::optional<Batch> find(int64_t i) const override;
  bool are_shared() const override { return false; }

 private:
  ElementFile(std::string path, FileDescriptor file) : path_(std::move(path)), file_(std::move(file)) {}

  const std::string path_;
  const FileDescriptor file_;
  std::vector<int64_t> places_;  // of the records, by element
  int64_t end_ = 0;              // of the elements
};

/// Writes such a file. It holds a lock on what it writes: no second one can be made meanwhile. Any thread; in a forked
/// child nothing is written or removed. Where the disk takes no more, or an element has a tensor without plain elements
/// in the host's memory, a warning is logged once, and nothing is added from then on.
class ElementRecording final : public GrowingElements {
 public:
  /// Of a stream: all is written beside the path, and finish() puts it there, synced. What was not finished is removed.
  /// Null where another reader writes it. Throws a DataError where the file cannot be made, or where one lies beside
  /// the path that no stream's cache has begun.
  static std::shared_ptr<ElementRecording> begin(const std::string& path, const CacheKey& key);
  /// Of a data set: samples are added to the file at the path, behind those that it has whole. What was cut off, by a
  /// full disk or the end of a process, is dropped. With the last sample the file is finished. Null where another
  /// reader writes it. Throws a DataError where the file cannot be opened, or holds other data; one of an older format
  /// is made anew.
  static std::shared_ptr<ElementRecording> resume(const std::string& path, const CacheKey& key);
  ~ElementRecording() override;
  ElementRecording(const ElementRecording&) = delete;
  ElementRecording& operator=(const ElementRecording&) = delete;

  int64_t size() const override;
  /// Nothing for an element that is damaged, too: it can be added again.
  std::optional<Batch> find(int64_t i) const override;
  bool are_shared() const override { return false; }
  bool add(int64_t i, const Batch& element) override;
  bool finish() override;

 private:
  ElementRecording(std::string path, const CacheKey& key, bool is_beside, FileDescriptor file)
      : path_(std::move(path)), key_(key), is_beside_(is_beside), file_(std::move(file)) {}
  void find_records(int64_t length);
  /// Whether the file beside the path is still this one: somebody may have removed it.
  bool is_there() const;
  // With mutex_ locked.
  /// Writes at end_. An empty file gets its head first, and end_ is then behind the head.
  bool append(const std::string& bytes);
  bool give_up(const std::string& why);

  const std::string path_;
  const CacheKey key_;
  const bool is_beside_;
  const FileDescriptor file_;
  const ProcessMark process_;
  bool is_begun_ = false;  // the file beside the path is this one's to remove
  mutable std::mutex mutex_;
  mutable std::vector<int64_t> places_;  // of the records, by element; -1: it is not there; guarded by mutex_
  mutable int64_t missing_ = 0;          // samples of a data set that are not there; guarded by mutex_
  int64_t end_ = 0;                      // behind the last whole record; guarded by mutex_
  bool is_closed_ = false;               // nothing is added any more; guarded by mutex_
};

}  // namespace lockstep::internal::data
