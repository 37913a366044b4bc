// Files as a kernel would show them, for tests of what is read from /proc and /sys.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace lockstep::testing {

/// A folder that stands for the root of a file system, with files as a kernel would show them.
class FakeRoot {
 public:
  FakeRoot() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-root-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  void write(const std::string& file, const std::string& text) const {
    const std::filesystem::path target = path_ + file;
    std::filesystem::create_directories(target.parent_path());
    std::ofstream(target) << text << '\n';
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace lockstep::testing
