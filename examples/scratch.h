// A folder for the files that an example makes for itself.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

/// It goes with the object.
class Scratch {
 public:
  Scratch() { std::filesystem::create_directories(path_); }
  ~Scratch() { std::filesystem::remove_all(path_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::string path() const { return path_.string(); }
  /// Writes a file, and the folders that it is in; gives its path.
  std::string write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return (path_ / name).string();
  }

 private:
  const std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("lockstep-example-" + std::to_string(getpid()));
};
