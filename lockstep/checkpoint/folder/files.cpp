#include "lockstep/checkpoint/folder/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>

#include "lockstep/core/error.h"
#include "lockstep/core/process/file_descriptor.h"

namespace lockstep::internal::inline checkpoint {

namespace {

namespace fs = std::filesystem;

// One copies into the system's memory while the other waits for the disk. More would take cores from the training.
constexpr int64_t kWritingThreads = 2;
constexpr int64_t kMostReadingThreads = 8;

[[noreturn]] void fail(const fs::path& path, const char* what, int error) {
  if (is_out_of_descriptors(error)) {
    throw DataError("LS-FILE-LIMIT", fmt::format("'{}' {}: {}", path.string(), what, text_of_open_error(error)),
                    kMoreDescriptors);
  }
  const char* const remedy = error == ENOSPC || error == EDQUOT    ? "make room on the disk, or choose another one"
                             : error == EACCES || error == EROFS   ? "choose a folder that you may write to"
                             : error == ENOENT || error == ENOTDIR ? "look at the path"
                                                                   : "look at the disk, and at the system's log";
  throw DataError("LS-FILE", fmt::format("'{}' {}: {}", path.string(), what, std::strerror(error)), remedy);
}

/// Whether a lock or a sync has failed because the file system has no such call. Network file systems without a lock
/// manager say ENOLCK, FUSE and others the rest.
bool is_unsupported(int error) {
  return error == EOPNOTSUPP || error == ENOTSUP || error == ENOSYS || error == EINVAL || error == ENOLCK ||
         error == ENOTTY;
}
/// Of a folder: some file systems open one for reading, and sync only what was opened for writing.
bool is_unsupported_of_folder(int error) { return is_unsupported(error) || error == EBADF || error == EISDIR; }

/// Calls `call` again as long as a signal interrupts it.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

class HostNewFile final : public NewFile {
 public:
  HostNewFile(const fs::path& path, bool is_there)
      : path_(path), fd_(uninterrupted([&] {
          return ::open(path.c_str(), O_WRONLY | O_CLOEXEC | (is_there ? O_NOFOLLOW : O_CREAT | O_EXCL), 0666);
        })) {
    if (!fd_.is_open()) fail(path_, is_there ? "could not be opened" : "could not be made", errno);
  }
  void write(uint64_t offset, std::span<const std::byte> bytes) override {
    const auto begin = static_cast<off_t>(offset);
    const auto size = static_cast<off_t>(bytes.size());
    while (!bytes.empty()) {
      // Linux writes at most 2 GiB at once.
      const std::size_t part = std::min<std::size_t>(bytes.size(), std::size_t{1} << 30);
      const ssize_t written =
          uninterrupted([&] { return ::pwrite(fd_.get(), bytes.data(), part, static_cast<off_t>(offset)); });
      if (written <= 0) fail(path_, "could not be written", written < 0 ? errno : EIO);
      offset += static_cast<uint64_t>(written);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
    // Starts writing to the disk now, so that sync() has less to do. It may fail where the system cannot do that.
    ::sync_file_range(fd_.get(), begin, size, SYNC_FILE_RANGE_WRITE);
  }
  void sync() override {
    if (uninterrupted([&] { return ::fsync(fd_.get()); }) != 0 && !is_unsupported(errno)) {
      fail(path_, "could not be written to the disk", errno);
    }
  }

 private:
  const fs::path path_;
  const FileDescriptor fd_;
};

class HostOpenFile final : public OpenFile {
 public:
  explicit HostOpenFile(const fs::path& path)
      : path_(path), fd_(uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); })) {
    struct stat status = {};
    if (!fd_.is_open() || ::fstat(fd_.get(), &status) != 0) fail(path_, "could not be opened", errno);
    if (!S_ISREG(status.st_mode)) {
      throw DataError("LS-FILE", fmt::format("'{}' is not a file", path_.string()), "look at the path");
    }
    size_ = static_cast<uint64_t>(status.st_size);
  }
  uint64_t size() const override { return size_; }
  void read(uint64_t offset, std::span<std::byte> bytes) const override {
    while (!bytes.empty()) {
      const std::size_t part = std::min<std::size_t>(bytes.size(), std::size_t{1} << 30);
      const ssize_t got =
          uninterrupted([&] { return ::pread(fd_.get(), bytes.data(), part, static_cast<off_t>(offset)); });
      if (got < 0) fail(path_, "could not be read", errno);
      if (got == 0) {
        throw DataError("LS-FILE", fmt::format("'{}' ends at byte {}", path_.string(), offset),
                        "use another checkpoint, or copy the file again");
      }
      offset += static_cast<uint64_t>(got);
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    }
  }

 private:
  const fs::path path_;
  const FileDescriptor fd_;
  uint64_t size_ = 0;
};

class HostLock final : public FileLock {
 public:
  HostLock(fs::path path, FileDescriptor fd, bool is_held)
      : path_(std::move(path)), fd_(std::move(fd)), is_held_(is_held) {}
  bool is_held() const override { return is_held_; }
  bool is_in_place() const override {
    struct stat mine = {};
    struct stat named = {};
    return ::fstat(fd_.get(), &mine) == 0 && ::stat(path_.c_str(), &named) == 0 && mine.st_dev == named.st_dev &&
           mine.st_ino == named.st_ino;
  }

 private:
  const fs::path path_;
  const FileDescriptor fd_;  // closing it gives the lock back
  const bool is_held_;
};

class HostFiles final : public Files {
 public:
  int64_t writing_threads() const override { return kWritingThreads; }
  int64_t reading_threads() const override {
    return std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, kMostReadingThreads);
  }
  std::unique_ptr<NewFile> create(const fs::path& path) override { return std::make_unique<HostNewFile>(path, false); }
  std::unique_ptr<NewFile> open_to_write(const fs::path& path) override {
    return std::make_unique<HostNewFile>(path, true);
  }
  std::unique_ptr<OpenFile> open(const fs::path& path) override { return std::make_unique<HostOpenFile>(path); }
  bool has(const fs::path& path) override {
    struct stat status = {};
    return look(path, status);
  }
  bool is_folder(const fs::path& path) override {
    struct stat status = {};
    return look(path, status) && S_ISDIR(status.st_mode);
  }
  std::vector<std::string> list(const fs::path& folder) override {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator one(folder, error), end; !error && one != end; one.increment(error)) {
      names.push_back(one->path().filename().string());
    }
    if (error && error != std::errc::no_such_file_or_directory) fail(folder, "could not be listed", error.value());
    std::sort(names.begin(), names.end());
    return names;
  }
  bool make_folder(const fs::path& folder) override {
    std::error_code ignored;
    if (fs::is_directory(folder, ignored)) return false;
    const fs::path above = parent_of(folder);
    if (!has(above)) make_folder(above);
    if (::mkdir(folder.c_str(), 0777) != 0) {
      const int error = errno;
      if (error == EEXIST && fs::is_directory(folder, ignored)) return false;  // another process was faster
      fail(folder, "could not be made", error);
    }
    sync_folder(above);
    return true;
  }
  void sync_folder(const fs::path& folder) override {
    const FileDescriptor fd = opened_folder(folder);
    if (!fd.is_open()) fail(folder, "could not be opened", errno);
    if (uninterrupted([&] { return ::fsync(fd.get()); }) != 0 && !is_unsupported_of_folder(errno)) {
      fail(folder, "could not be written to the disk", errno);
    }
  }
  void rename(const fs::path& from, const fs::path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) fail(from, "could not be renamed", errno);
  }
  void remove_file(const fs::path& path) override {
    if (::unlink(path.c_str()) != 0) fail(path, "could not be removed", errno);
  }
  void remove_folder(const fs::path& folder) override {
    if (::rmdir(folder.c_str()) != 0) fail(folder, "could not be removed", errno);
  }
  std::unique_ptr<FileLock> lock(const fs::path& path) override {
    constexpr int kAttempts = 20;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
      if (!fd.is_open()) fail(path, "could not be opened", errno);
      const bool is_held = uninterrupted([&] { return ::flock(fd.get(), LOCK_EX | LOCK_NB); }) == 0;
      if (!is_held && errno == EWOULDBLOCK) return nullptr;
      if (!is_held && !is_unsupported(errno)) fail(path, "could not be locked", errno);
      auto lock = std::make_unique<HostLock>(path, std::move(fd), is_held);
      if (lock->is_in_place()) return lock;  // otherwise it was removed in between
    }
    fail(path, "could not be locked", ENOENT);
  }
  bool is_locked(const fs::path& path) override {
    const FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!fd.is_open()) {
      if (errno == ENOENT) return false;
      fail(path, "could not be opened", errno);
    }
    return uninterrupted([&] { return ::flock(fd.get(), LOCK_EX | LOCK_NB); }) != 0 && errno == EWOULDBLOCK;
  }
  std::optional<MissingProtection> missing_protection(const fs::path& probe) override {
    MissingProtection missing;
    const auto reason = [](const char* call) { return fmt::format("{}: {}", call, std::strerror(errno)); };
    const FileDescriptor file(
        uninterrupted([&] { return ::open(probe.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666); }));
    if (!file.is_open()) return std::nullopt;
    if (uninterrupted([&] { return ::flock(file.get(), LOCK_EX | LOCK_NB); }) != 0 && is_unsupported(errno)) {
      missing.lock = reason("flock");
    }
    if (uninterrupted([&] { return ::fsync(file.get()); }) != 0 && is_unsupported(errno))
      missing.sync = reason("fsync");
    ::unlink(probe.c_str());
    const FileDescriptor folder = opened_folder(probe.parent_path());
    if (folder.is_open() && uninterrupted([&] { return ::fsync(folder.get()); }) != 0 &&
        is_unsupported_of_folder(errno)) {
      missing.sync_folder = reason("fsync of a folder");
    }
    return missing;
  }

 private:
  /// False where there is nothing of this name, and only then.
  static bool look(const fs::path& path, struct stat& status) {
    if (uninterrupted([&] { return ::lstat(path.c_str(), &status); }) == 0) return true;
    if (errno != ENOENT && errno != ENOTDIR) fail(path, "could not be looked at", errno);
    return false;
  }
  static FileDescriptor opened_folder(const fs::path& folder) {
    return FileDescriptor(uninterrupted(
        [&] { return ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  }
  static fs::path parent_of(const fs::path& folder) {
    fs::path above = folder.parent_path();
    if (folder.filename().empty()) above = above.parent_path();  // "a/b/"
    return above.empty() ? fs::path(".") : above;
  }
};

}  // namespace

bool says_of_file(const DataError& error) { return error.code() != "LS-FILE-LIMIT"; }

Files& host_files() {
  static HostFiles files;
  return files;
}

}  // namespace lockstep::internal::checkpoint
