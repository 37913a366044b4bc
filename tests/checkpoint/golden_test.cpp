// A checkpoint of each format that was ever released loads for ever: tests/checkpoint/golden/format-N, with the digest
// of the state that it must give.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "lockstep/checkpoint/folder/manifest.h"
#include "tests/checkpoint/training.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// The program that saved them. Where testing::Training changes, this must not: copy it here before.
using Program = testing::OneTraining;

const fs::path kGolden = LOCKSTEP_GOLDEN;

TEST(Golden, EveryReleasedFormatLoads) {
  set_log_sink([](LogLevel, std::string_view) {});  // another fingerprint is expected
  for (uint64_t format = 1; format <= internal::kCheckpointFormat; ++format) {
    const fs::path folder = kGolden / ("format-" + std::to_string(format));
    Program run(2);
    EXPECT_EQ(run.training.checkpoint().restore(folder).step, 3);
    std::string expected;
    std::getline(std::ifstream(folder / "digest"), expected);
    EXPECT_EQ(run.training.digest(), expected) << folder;
    run.training.steps(1);
  }
  set_log_sink({});
}

/// Writes the one of the present format, which is done once for each format.
TEST(Golden, DISABLED_IsWritten) {
  const fs::path folder = kGolden / ("format-" + std::to_string(internal::kCheckpointFormat));
  ASSERT_FALSE(fs::exists(folder)) << "a golden checkpoint is never written again";
  Program run(2);
  run.training.steps(3);
  run.training.checkpoint().save(folder);
  std::ofstream(folder / "digest") << run.training.digest() << "\n";
}

}  // namespace
}  // namespace lockstep
