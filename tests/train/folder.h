// A folder for the files of a part of a test, of which there may be several.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

namespace lockstep::testing {

/// A folder of its own, which goes with it.
class Folder {
 public:
  Folder() { std::filesystem::remove_all(path_); }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  static inline int count_ = 0;
  const std::filesystem::path path_ = std::filesystem::temp_directory_path() /
                                      ("lockstep-folder-" + std::to_string(getpid()) + "-" + std::to_string(count_++));
};

}  // namespace lockstep::testing
