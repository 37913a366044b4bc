// A file's bytes: at any place, or in order, plain or gzip-compressed. Nothing is mapped into memory, so that a file
// that is cut off while it is read gives an error and no signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/core/process/file_descriptor.h"

namespace lockstep::internal::inline data {

constexpr const char* kMoreMemory = "give this process more memory, or read fewer steps ahead";

/// A file cannot be read from some place on. What it says besides the code, so that a reader of records can add which
/// of them are lost.
class InputError : public DataError {
 public:
  InputError(const std::string& fact, const std::string& remedy)
      : DataError("LS-DATA-FILE", fact, remedy), fact_(fact) {}
  const std::string& fact() const { return fact_; }

 private:
  std::string fact_;
};

/// Throws the DataError of a file that could not be opened, with errno's `error`: LS-FILE-LIMIT where no file
/// descriptor or no memory is left, which says nothing of the file, and otherwise LS-DATA-FILE.
[[noreturn]] void refuse_to_open(const std::string& path, int error);

/// A plain file that is open for reading at any place. Any number of threads may read at once.
class InputFile {
 public:
  /// Throws a DataError that names a file that cannot be opened, or is a folder, a device or a pipe.
  explicit InputFile(std::string path);
  const std::string& path() const { return path_; }
  /// Its size when it was opened.
  int64_t size() const { return size_; }
  /// Reads up to `count` bytes from `offset` on; fewer only at the end of the file. Throws a DataError where the file
  /// cannot be read.
  std::size_t read_at(int64_t offset, char* to, std::size_t count) const;

 private:
  std::string path_;
  FileDescriptor file_;
  int64_t size_ = 0;
};

/// All contents of a file, decompressed where it is compressed. Throws a DataError where it cannot be read or has more
/// than `most` bytes. Memory grows with what is read.
std::string bytes_of_file(const std::string& path, int64_t most);

/// The contents of a file, at any place; those of a compressed one are kept in memory. Any number of threads may read.
class FileContents {
 public:
  /// Throws a DataError as InputFile does, and where a compressed file is damaged.
  explicit FileContents(const std::string& path);
  const std::string& path() const { return file_.path(); }
  int64_t size() const { return unpacked_ ? static_cast<int64_t>(unpacked_->size()) : file_.size(); }
  /// See InputFile.
  std::size_t read_at(int64_t offset, char* to, std::size_t count) const;

 private:
  const InputFile file_;
  std::optional<std::string> unpacked_;
};

/// Where an Input's bytes come from.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Reads up to `count` bytes, at least one; 0 at the end. Where it throws, it has given all bytes before that place.
  virtual std::size_t read(char* to, std::size_t count) = 0;
  /// Moves ahead by `count` bytes, and gives how many of them there were.
  virtual uint64_t skip(uint64_t count) = 0;
};

/// Whether a file that begins with these bytes is not compressed, although it looks so.
using IsPlain = bool (*)(std::string_view first);

/// Bytes in order. One thread at a time.
class Input {
 public:
  /// The contents of a file from byte `offset` on, as many as it had when it was opened; of a compressed one, which its
  /// first bytes say, what is compressed in it, and offsets count that. Throws a DataError where the file cannot be
  /// opened, has no byte `offset`, or is compressed in another way than with gzip. Reading throws an InputError where
  /// the file is damaged, and at its end where it has become longer or shorter meanwhile.
  explicit Input(const std::string& path, int64_t offset = 0, IsPlain is_plain = nullptr);
  /// Bytes in memory that messages call `name`, from `offset` on.
  Input(std::string name, std::string bytes, int64_t offset);

  /// What messages call it: the path.
  const std::string& name() const { return name_; }
  /// Of the byte that is read next.
  int64_t offset() const { return offset_; }
  /// Reads up to `count` bytes; fewer only at the end.
  std::size_t read(char* to, std::size_t count);
  /// Appends up to `count` bytes, fewer only at the end, and gives how many. Memory grows with what is read.
  uint64_t append(std::string& bytes, uint64_t count);
  /// Moves ahead by `count` bytes, and gives how many of them there were.
  uint64_t skip(uint64_t count);
  /// The bytes that can be had at once, at least one of them; none at the end. They are valid until the next call.
  std::string_view peek();

 private:
  std::string name_;
  std::unique_ptr<ByteSource> source_;
  std::size_t capacity_;
  std::string buffer_;     // has memory once it is needed
  std::size_t begin_ = 0;  // of what the buffer holds and was not read yet
  std::size_t end_ = 0;
  int64_t offset_ = 0;
};

}  // namespace lockstep::internal::data
