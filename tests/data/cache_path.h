// A folder's place for the file of a stream's cache.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/data/dealt_numbers.h"

namespace lockstep::testing {

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
