// A folder for the files of one test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/errors.h"

namespace lockstep::testing {

/// Its folder goes with the test.
class ScratchFolder : public ::testing::Test {
 protected:
  ScratchFolder()
      : folder_(std::filesystem::temp_directory_path() /
                (std::string("lockstep-") + ::testing::UnitTest::GetInstance()->current_test_info()->name() + "-" +
                 std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~ScratchFolder() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  /// The path in quotes, as errors name it.
  std::string quoted(const std::string& name) const { return "'" + path(name) + "'"; }
  /// Writes a file, and the folders that it is in; gives its path.
  std::string write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return path(name);
  }
  const std::filesystem::path folder_;
};

}  // namespace lockstep::testing
