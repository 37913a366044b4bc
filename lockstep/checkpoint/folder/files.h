// The file system as checkpoints use it: every call that can fail, or after which a machine can stop, is a member here,
// so that a test can stand in for each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep {
class DataError;
}

namespace lockstep::internal::inline checkpoint {

/// A file that is being written. What was written is durable once sync() has returned, and its name once the folder is
/// synced.
class NewFile {
 public:
  virtual ~NewFile() = default;
  /// Several threads may write at once, each its own bytes. Other processes may write other bytes of the file.
  virtual void write(uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual void sync() = 0;  // of what this object has written, where the file system can do that
};

/// A file that is read in any order.
class OpenFile {
 public:
  virtual ~OpenFile() = default;
  virtual uint64_t size() const = 0;
  /// Fills `bytes` from `offset`. A DataError where the file has fewer.
  virtual void read(uint64_t offset, std::span<std::byte> bytes) const = 0;
};

/// Whether an error that came of reading a file means that the file, or its disk, is not as it should be. It does not
/// where this process could not open any other file either (LS-FILE-LIMIT).
bool says_of_file(const DataError& error);

/// Held until it is destroyed, or until the process ends in any way.
class FileLock {
 public:
  virtual ~FileLock() = default;
  /// Whether the file that is locked still has its name: where the folder was removed and made again, another job can
  /// lock the new file.
  virtual bool is_in_place() const = 0;
  /// False where the file system has no locks: then nobody is kept away.
  virtual bool is_held() const { return true; }
};

/// What the file system of a folder cannot do: the system's reason ("flock: Operation not supported"), or nothing where
/// it can. An error of a disk is no such reason.
struct MissingProtection {
  std::string lock = {};         // of a file
  std::string sync = {};         // of a file's bytes
  std::string sync_folder = {};  // of the names in it
};

/// Every member throws a DataError (LS-FILE) that names the path and the system's reason. The object may be used on any
/// thread.
class Files {
 public:
  virtual ~Files() = default;

  /// How many threads should write pieces of a file at once.
  virtual int64_t writing_threads() const { return 1; }
  /// The same for reading, while which nothing trains.
  virtual int64_t reading_threads() const { return 1; }
  /// A file that must not be there yet.
  virtual std::unique_ptr<NewFile> create(const std::filesystem::path& path) = 0;
  /// A file that create() has made, perhaps of another process, which writes it too.
  virtual std::unique_ptr<NewFile> open_to_write(const std::filesystem::path& path) = 0;
  virtual std::unique_ptr<OpenFile> open(const std::filesystem::path& path) = 0;
  /// Whether there is a file, a folder or a link of this name. Throws where the system cannot tell: what cannot be
  /// looked at must not count as absent.
  virtual bool has(const std::filesystem::path& path) = 0;
  /// Whether it is a folder itself, and not a link to one. Throws as has() does.
  virtual bool is_folder(const std::filesystem::path& path) = 0;
  /// The names in a folder, sorted; none where there is no such folder.
  virtual std::vector<std::string> list(const std::filesystem::path& folder) = 0;
  /// Makes a folder and those above it; one that is there already is no error. Gives whether it was made. Its name is
  /// durable when this returns.
  virtual bool make_folder(const std::filesystem::path& folder) = 0;
  /// Makes the names in a folder durable, or their absence, where the file system can do that.
  virtual void sync_folder(const std::filesystem::path& folder) = 0;
  /// Gives a file another name in the same folder; a file that had the name is replaced, at once and as a whole.
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  virtual void remove_file(const std::filesystem::path& path) = 0;
  virtual void remove_folder(const std::filesystem::path& folder) = 0;  // an empty one
  /// Locks a file, which it makes where it is not there; null where another process, or another lock of this one, holds
  /// it. Where the file system has no locks, one that is not held.
  virtual std::unique_ptr<FileLock> lock(const std::filesystem::path& path) = 0;
  /// Whether anybody holds the lock of a file; false where there is no such file.
  virtual bool is_locked(const std::filesystem::path& path) = 0;
  /// Finds it out by a file of this name, which nobody else uses, and removes that file. Nothing where the file cannot
  /// be made: then it is not known.
  virtual std::optional<MissingProtection> missing_protection(const std::filesystem::path& /*probe*/) {
    return MissingProtection();
  }
};

/// This machine's.
Files& host_files();

}  // namespace lockstep::internal::checkpoint
