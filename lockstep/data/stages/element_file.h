// The file behind Stream::cache(path): all elements of a stream, in their order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/process/file_descriptor.h"
#include "lockstep/core/process/forks.h"
#include "lockstep/data/batch.h"

namespace lockstep::internal {

/// A file that was written to its end: a head that names the data, the elements, each behind its length and checksum,
/// and the places of all elements. Any thread.
class ElementFile {
 public:
  /// Null where there is no such file. Throws a DataError where it cannot be read, is damaged, or holds other data than
  /// `digest` says.
  static std::shared_ptr<const ElementFile> open(const std::string& path, uint64_t digest);

  int64_t size() const { return static_cast<int64_t>(places_.size()); }
  /// Element i, in memory of its own. Throws a DataError where it is damaged.
  Batch read(int64_t i) const;

 private:
  ElementFile(std::string path, FileDescriptor file) : path_(std::move(path)), file_(std::move(file)) {}
  void read_places(uint64_t digest);

  const std::string path_;
  const FileDescriptor file_;
  std::vector<int64_t> places_;  // by element
  int64_t end_ = 0;              // of the elements
};

/// Writes such a file beside its path, where finish() puts it. One thread at a time.
class ElementFileWriter {
 public:
  /// Null where another reader writes it. Throws a DataError where the file cannot be made, or where one lies beside
  /// the path that no cache has begun.
  static std::unique_ptr<ElementFileWriter> make(const std::string& path, uint64_t digest);
  /// What was not finished is removed.
  ~ElementFileWriter();
  ElementFileWriter(const ElementFileWriter&) = delete;
  ElementFileWriter& operator=(const ElementFileWriter&) = delete;

  /// False, with a warning in the log, where the disk takes no more, or a tensor has no plain elements in the host's
  /// memory. Then nothing can be added any more.
  bool add(const Batch& element);
  /// Puts the file, whose bytes are synced, into its place. False, with a warning in the log, where the disk does not
  /// take it.
  bool finish();

 private:
  ElementFileWriter(std::string path, uint64_t digest, FileDescriptor file)
      : path_(std::move(path)), digest_(digest), file_(std::move(file)) {}
  /// Writes behind what is there, which begins with the head.
  bool append(const void* from, std::size_t count);
  bool give_up(const std::string& why);
  /// Whether the file beside the path is still this one: somebody may have removed it.
  bool is_there() const;
  /// In a forked child nothing is written or removed.
  bool is_own() const { return file_.is_open() && !process_.is_in_child(); }

  const std::string path_;
  const uint64_t digest_;
  FileDescriptor file_;
  const ProcessMark process_;
  bool is_begun_ = false;  // the file beside the path is this one's to remove
  std::vector<int64_t> places_;
  int64_t end_ = 0;
};

}  // namespace lockstep::internal
