// A folder's place for the file of a stream's cache.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

namespace lockstep::testing {

inline std::vector<int64_t> up_to(int64_t count) {
  std::vector<int64_t> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
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
