// This machine's file system, for tests that change some of its calls.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/folder/files.h"

namespace lockstep::testing {

class ForwardedFiles : public internal::Files {
 public:
  using Path = std::filesystem::path;
  std::unique_ptr<internal::NewFile> create(const Path& path) override { return files_.create(path); }
  std::unique_ptr<internal::NewFile> open_to_write(const Path& path) override { return files_.open_to_write(path); }
  std::unique_ptr<internal::OpenFile> open(const Path& path) override { return files_.open(path); }
  bool has(const Path& path) override { return files_.has(path); }
  bool is_folder(const Path& path) override { return files_.is_folder(path); }
  std::vector<std::string> list(const Path& folder) override { return files_.list(folder); }
  bool make_folder(const Path& folder) override { return files_.make_folder(folder); }
  void sync_folder(const Path& folder) override { files_.sync_folder(folder); }
  void rename(const Path& from, const Path& to) override { files_.rename(from, to); }
  void remove_file(const Path& path) override { files_.remove_file(path); }
  void remove_folder(const Path& folder) override { files_.remove_folder(folder); }
  std::unique_ptr<internal::FileLock> lock(const Path& path) override { return files_.lock(path); }
  bool is_locked(const Path& path) override { return files_.is_locked(path); }
  std::optional<internal::MissingProtection> missing_protection(const Path& probe) override {
    return files_.missing_protection(probe);
  }

 private:
  internal::Files& files_ = internal::host_files();
};

}  // namespace lockstep::testing
