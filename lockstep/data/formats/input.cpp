#include "lockstep/data/formats/input.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/data/formats/compression.h"
#include "lockstep/data/formats/gzip_bytes.h"

namespace lockstep::internal::inline data {

namespace {

constexpr std::size_t kBuffer = 1 << 18;
constexpr std::size_t kPiece = 1 << 20;  // memory grows by what was read, a piece at a time

std::string text_of_errno(int error) { return std::generic_category().message(error); }

/// The bytes that a file had when it was opened: a record at the end of one that grows would be a part of a record.
class FileBytes final : public ByteSource {
 public:
  FileBytes(const std::string& path, int64_t offset) : file_(path), offset_(offset) {
    if (offset <= file_.size()) return;
    throw DataError("LS-DATA-FILE",
                    fmt::format("'{}' has {} bytes, and byte {} was to be read", path, file_.size(), offset),
                    "the file changed: get it again, or begin at its start");
  }
  const InputFile& file() const { return file_; }
  std::size_t read(char* to, std::size_t count) override {
    const auto left = static_cast<std::size_t>(std::max<int64_t>(file_.size() - offset_, 0));
    const std::size_t got = file_.read_at(offset_, to, std::min(count, left));
    if (got == 0 && count > 0) check_end(left == 0);
    offset_ += static_cast<int64_t>(got);
    return got;
  }
  uint64_t skip(uint64_t count) override {
    const auto left = static_cast<uint64_t>(std::max<int64_t>(file_.size() - offset_, 0));
    const uint64_t moved = std::min(count, left);
    offset_ += static_cast<int64_t>(moved);
    return moved;
  }

 private:
  void check_end(bool is_expected) const {
    char more = 0;
    if (is_expected && file_.read_at(offset_, &more, 1) == 0) return;
    throw InputError(fmt::format("'{}' had {} bytes when it was opened, and now {} byte {}", file_.path(), file_.size(),
                                 is_expected ? "goes on behind" : "ends before", offset_),
                     "let nothing write to it while it is in use");
  }

  const InputFile file_;
  int64_t offset_;
};

class MemoryBytes final : public ByteSource {
 public:
  MemoryBytes(std::string bytes, std::size_t offset)
      : bytes_(std::move(bytes)), offset_(std::min(offset, bytes_.size())) {}
  std::size_t read(char* to, std::size_t count) override {
    const std::size_t got = std::min(count, bytes_.size() - offset_);
    std::copy_n(bytes_.data() + offset_, got, to);
    offset_ += got;
    return got;
  }
  uint64_t skip(uint64_t count) override {
    const auto moved = static_cast<std::size_t>(std::min<uint64_t>(count, bytes_.size() - offset_));
    offset_ += moved;
    return moved;
  }

 private:
  const std::string bytes_;
  std::size_t offset_;
};

Compression compression_in(const InputFile& file) {
  char first[kDecidingBytes];
  return compression_of({first, file.read_at(0, first, sizeof first)}, file.path());
}

std::unique_ptr<ByteSource> open_source(const std::string& path, int64_t offset, IsPlain is_plain) {
  auto begin = std::make_unique<FileBytes>(path, 0);
  char first[kDecidingBytes];
  const std::size_t got = begin->file().read_at(0, first, sizeof first);
  if (is_plain != nullptr && is_plain({first, got})) return std::make_unique<FileBytes>(path, offset);
  if (compression_of({first, got}, path) == Compression::kNone) return std::make_unique<FileBytes>(path, offset);
  auto source = gzip_contents(path, std::move(begin));
  const uint64_t there = source->skip(static_cast<uint64_t>(offset));
  if (there == static_cast<uint64_t>(offset)) return source;
  throw DataError("LS-DATA-FILE",
                  fmt::format("'{}' has {} bytes of contents, and byte {} was to be read", path, there, offset),
                  "the file changed: get it again, or begin at its start");
}

}  // namespace

void refuse_to_open(const std::string& path, int error) {
  const std::string what = fmt::format("'{}' cannot be opened: {}", path, text_of_open_error(error));
  if (is_out_of_descriptors(error)) throw DataError("LS-FILE-LIMIT", what, kMoreDescriptors);
  if (error == ENOMEM) throw DataError("LS-FILE-LIMIT", what, kMoreMemory);
  throw DataError("LS-DATA-FILE", what, "check that it exists and may be read");
}

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // A pipe would wait for its writer.
  file_ = FileDescriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file_.is_open()) refuse_to_open(path_, errno);
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    throw DataError("LS-DATA-FILE", fmt::format("'{}' is not a plain file", path_), "give a file");
  }
  size_ = status.st_size;
}

std::size_t InputFile::read_at(int64_t offset, char* to, std::size_t count) const {
  std::size_t done = 0;
  while (done < count) {
    const ssize_t got = ::pread(file_.get(), to + done, count - done, offset + static_cast<int64_t>(done));
    if (got == 0) break;
    if (got > 0) {
      done += static_cast<std::size_t>(got);
    } else if (errno != EINTR) {
      throw InputError(fmt::format("'{}' cannot be read at byte {}: {}", path_, offset + static_cast<int64_t>(done),
                                   text_of_errno(errno)),
                       "look at the disk, or get the file again");
    }
  }
  return done;
}

std::string bytes_of_file(const std::string& path, int64_t most) {
  const InputFile file(path);
  std::string bytes;
  if (compression_in(file) == Compression::kGzip) {
    if (Input(path).append(bytes, static_cast<uint64_t>(most) + 1) <= static_cast<uint64_t>(most)) return bytes;
  }
  for (std::size_t got = 0; bytes.size() <= static_cast<std::size_t>(most);) {
    // One byte more than there should be, to see the end; a piece at a time, so that memory grows with what is read.
    const auto left = static_cast<std::size_t>(std::max<int64_t>(file.size() - static_cast<int64_t>(got), 0)) + 1;
    bytes.resize(got + std::min(left, kPiece));
    const std::size_t read = file.read_at(static_cast<int64_t>(got), bytes.data() + got, bytes.size() - got);
    got += read;
    if (got == bytes.size()) continue;
    bytes.resize(got);
    return bytes;
  }
  throw DataError("LS-DATA-FILE", fmt::format("'{}' has more than {} bytes", path, most), "give a smaller file");
}

FileContents::FileContents(const std::string& path) : file_(path) {
  if (compression_in(file_) == Compression::kGzip) unpacked_ = bytes_of_file(path, INT64_MAX - 1);
}

std::size_t FileContents::read_at(int64_t offset, char* to, std::size_t count) const {
  if (!unpacked_) return file_.read_at(offset, to, count);
  const std::size_t begin = std::min(static_cast<std::size_t>(offset), unpacked_->size());
  return unpacked_->copy(to, count, begin);
}

Input::Input(const std::string& path, int64_t offset, IsPlain is_plain)
    : name_(path), source_(open_source(path, offset, is_plain)), capacity_(kBuffer), offset_(offset) {}

Input::Input(std::string name, std::string bytes, int64_t offset)
    : name_(std::move(name)),
      source_(std::make_unique<MemoryBytes>(std::move(bytes), static_cast<std::size_t>(offset))),
      capacity_(4096),
      offset_(offset) {}

std::string_view Input::peek() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
    buffer_.resize(capacity_);
    end_ = source_->read(buffer_.data(), buffer_.size());
  }
  return {buffer_.data() + begin_, end_ - begin_};
}

std::size_t Input::read(char* to, std::size_t count) {
  std::size_t done = 0;
  while (done < count) {
    std::size_t got = 0;
    if (begin_ == end_ && count - done >= capacity_) {
      got = source_->read(to + done, count - done);
    } else {
      const std::string_view there = peek();
      got = std::min(there.size(), count - done);
      std::copy_n(there.data(), got, to + done);
      begin_ += got;
    }
    if (got == 0) break;
    done += got;
    offset_ += static_cast<int64_t>(got);
  }
  return done;
}

uint64_t Input::append(std::string& bytes, uint64_t count) {
  uint64_t done = 0;
  while (done < count) {
    const auto wanted = static_cast<std::size_t>(std::min<uint64_t>(count - done, kPiece));
    const std::size_t before = bytes.size();
    bytes.resize(before + wanted);
    const std::size_t got = read(bytes.data() + before, wanted);
    bytes.resize(before + got);
    done += got;
    if (got < wanted) break;
  }
  return done;
}

uint64_t Input::skip(uint64_t count) {
  const auto held = static_cast<std::size_t>(std::min<uint64_t>(count, end_ - begin_));
  begin_ += held;
  const uint64_t moved = held + (count > held ? source_->skip(count - held) : 0);
  offset_ += static_cast<int64_t>(moved);
  return moved;
}

}  // namespace lockstep::internal::data
