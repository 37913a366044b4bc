// A path for the file of a cache, and what is in it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/data/dealt_numbers.h"

namespace lockstep::testing {

inline std::string bytes_in_file(const std::string& path) {
  std::string bytes(std::filesystem::file_size(path), '\0');
  std::ifstream(path, std::ios::binary).read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

class WithCachePath : public ::testing::Test {
 protected:
  WithCachePath() { remove(); }
  ~WithCachePath() override { remove(); }
  void remove() const {
    std::filesystem::remove(path_);
    std::filesystem::remove(path_ + ".part");
  }
  const std::string path_ = (std::filesystem::canonical(std::filesystem::temp_directory_path()) /
                             ("lockstep_stream_cache_" + std::to_string(getpid())))
                                .string();
};

}  // namespace lockstep::testing
