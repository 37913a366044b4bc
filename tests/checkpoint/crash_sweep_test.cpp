// Every call into the file system fails once, and the machine stops before every one: there is always a whole
// checkpoint, and it is the one from before or the new one.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "lockstep/checkpoint/checkpoint_folder.h"
#include "lockstep/checkpoint/image.h"
#include "tests/checkpoint/model_files.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using internal::Image;
using testing::Lost;
using testing::MachineStopped;
using testing::ModelFiles;

constexpr Lost kLosses[] = {Lost::kAll, Lost::kNothing, Lost::kContents, Lost::kHalf, Lost::kNewNames};

/// A small state whose values say which step it is of.
Image image_of(int64_t step) {
  Image image;
  image.run = {.library = "test",
               .strategy = "S",
               .replicas = 2,
               .workers = 1,
               .step = step,
               .sequence = static_cast<uint64_t>(step)};
  image.run.numbers.push_back({.kind = "number", .name = "step", .integers = {step}});
  image.tensors.push_back({"mirrored", "w", -1, torch::full({3, 2}, static_cast<double>(step))});
  image.tensors.push_back({"mirrored", "b", -1, torch::full({5}, step, torch::kByte)});
  image.tensors.push_back({"slot", "w/momentum", -1, torch::full({3, 2}, static_cast<double>(step))});
  for (int64_t r = 0; r < 2; ++r) image.tensors.push_back({"on-read", "mean", r, torch::full({2}, step + r)});
  return image;
}

/// Loads it whole, and gives the step that all its values are of.
int64_t step_in(ModelFiles& files, const fs::path& folder) {
  const Image image = internal::load_image(files, folder, [](const std::string&) { return true; });
  const int64_t step = image.run.step;
  const Image expected = image_of(step);
  EXPECT_EQ(image.run, expected.run);
  EXPECT_EQ(image.tensors.size(), expected.tensors.size());
  for (const auto& one : image.tensors) {
    EXPECT_EQ(one.value.to(torch::kLong).flatten()[0].item<int64_t>(), step + std::max<int64_t>(one.replica, 0))
        << one.name;
  }
  return step;
}

/// Saves as the manager does.
void save(ModelFiles& files, int64_t step, int64_t keep = 2) {
  internal::save_image(files, fs::path("runs/a") / internal::checkpoint_name(step), image_of(step));
  internal::remove_old(files, "runs/a", keep, 0);
}

int64_t newest(ModelFiles& files) {
  const auto found = internal::whole_checkpoints_in(files, "runs/a");
  if (found.empty()) return -1;
  for (const auto& one : found) EXPECT_EQ(step_in(files, one.path), one.step);
  return found.back().step;
}

int64_t calls_of_a_save() {
  ModelFiles files;
  for (const int64_t step : {1, 2, 3}) save(files, step);
  const int64_t before = files.calls();
  save(files, 4);
  return files.calls() - before;
}

TEST(CrashSweep, AStopBeforeAnyCallLeavesAWholeCheckpoint) {
  const int64_t calls = calls_of_a_save();
  EXPECT_GT(calls, 15);
  for (const Lost lost : kLosses) {
    bool was_new = false;
    for (int64_t n = 1; n <= calls + 1; ++n) {
      ModelFiles files;
      for (const int64_t step : {1, 2, 3}) save(files, step);
      files.stop_at(n);
      bool stopped = false;
      try {
        save(files, 4);
      } catch (const MachineStopped&) {
        stopped = true;
      }
      files.restart(lost);
      const int64_t found = newest(files);
      EXPECT_TRUE(found == 3 || found == 4) << found << " after a stop before call " << n;
      if (!stopped) {
        EXPECT_EQ(found, 4) << "a save that returned is durable";
      }
      if (was_new) {
        EXPECT_EQ(found, 4) << "once the new one is there, it stays: call " << n;
      }
      was_new = found == 4;
      // The run goes on from what was found, and the remains do not disturb it.
      save(files, found + 1);
      save(files, found + 2);
      EXPECT_EQ(newest(files), found + 2);
      EXPECT_EQ(internal::checkpoints_in(files, "runs/a").size(), 2u) << "nothing is left over: call " << n;
    }
    EXPECT_TRUE(was_new);
  }
}

TEST(CrashSweep, AStopDuringTheFirstSaveLeavesNothingOrTheFirst) {
  for (const Lost lost : kLosses) {
    for (int64_t n = 1; n <= 30; ++n) {
      ModelFiles files;
      files.stop_at(n);
      bool stopped = false;
      try {
        save(files, 1);
      } catch (const MachineStopped&) {
        stopped = true;
      }
      files.restart(lost);
      const int64_t found = newest(files);
      EXPECT_TRUE(found == -1 || found == 1);
      if (!stopped) {
        EXPECT_EQ(found, 1);
      }
      save(files, 1);
      EXPECT_EQ(newest(files), 1);
    }
  }
}

TEST(CrashSweep, AStopWhileACheckpointIsReplacedLeavesTheOldOneOrTheNew) {
  for (const Lost lost : kLosses) {
    for (int64_t n = 1; n <= 30; ++n) {
      ModelFiles files;
      internal::save_image(files, "c", image_of(1));
      files.stop_at(n);
      bool stopped = false;
      try {
        internal::save_image(files, "c", image_of(2));
      } catch (const MachineStopped&) {
        stopped = true;
      }
      files.restart(lost);
      const int64_t found = step_in(files, "c");
      EXPECT_TRUE(found == 1 || found == 2) << found;
      if (!stopped) {
        EXPECT_EQ(found, 2);
      }
      internal::save_image(files, "c", image_of(3));
      EXPECT_EQ(step_in(files, "c"), 3);
      EXPECT_EQ(files.list("c").size(), 4u);
    }
  }
}

TEST(CrashSweep, AFailureOfAnyCallLeavesTheOneBeforeAndTheRunGoesOn) {
  const int64_t calls = calls_of_a_save();
  for (const char* reason : {"Input/output error", "No space left on device"}) {
    for (const bool for_good : {false, true}) {
      for (int64_t n = 1; n <= calls; ++n) {
        ModelFiles files;
        for (const int64_t step : {1, 2, 3}) save(files, step);
        for_good ? files.fail_from(n, reason) : files.fail_at(n, reason);
        bool failed = false;
        try {
          save(files, 4);
        } catch (const DataError& error) {
          failed = true;
          EXPECT_EQ(error.code(), "LS-FILE");
          EXPECT_NE(std::string(error.what()).find(reason), std::string::npos);
        }
        files.work_again();
        const int64_t found = newest(files);
        EXPECT_TRUE(found == 3 || found == 4) << found << " after call " << n << " failed";
        if (!failed) {
          EXPECT_EQ(found, 4);
        }
        save(files, 5);
        save(files, 6);
        EXPECT_EQ(newest(files), 6);
        EXPECT_EQ(internal::checkpoints_in(files, "runs/a").size(), 2u) << "nothing is left over";
      }
    }
  }
}

TEST(CrashSweep, AFailureThenAStopLeavesAWholeCheckpoint) {
  const int64_t calls = calls_of_a_save();
  for (const Lost lost : kLosses) {
    for (int64_t n = 1; n <= calls; ++n) {
      ModelFiles files;
      for (const int64_t step : {1, 2, 3}) save(files, step);
      files.fail_at(n, "Input/output error");
      try {
        save(files, 4);
      } catch (const DataError&) {
      }
      files.restart(lost);
      const int64_t found = newest(files);
      EXPECT_TRUE(found == 3 || found == 4) << found << " after call " << n << " failed";
    }
  }
}

TEST(CrashSweep, AFlippedBitOfAnyByteIsFound) {
  ModelFiles files;
  internal::save_image(files, "c", image_of(1));
  int64_t flips = 0;
  for (const fs::path& path : files.all_files()) {
    std::string& bytes = files.bytes(path);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const char bit = static_cast<char>(1 << (i % 8));
      bytes[i] = static_cast<char>(bytes[i] ^ bit);
      const auto error = testing::caught_from<DataError>([&] { step_in(files, "c"); });
      ASSERT_TRUE(error) << path << " byte " << i;
      EXPECT_NE(std::string(error->what()).find(path.filename().string()), std::string::npos)
          << path << " byte " << i << ": " << error->what();
      bytes[i] = static_cast<char>(bytes[i] ^ bit);
      ++flips;
    }
    // Cut at any place, or longer.
    const std::string whole = bytes;
    for (std::size_t size = 0; size < whole.size(); size += 7) {
      bytes = whole.substr(0, size);
      testing::caught_from<DataError>([&] { step_in(files, "c"); });
    }
    bytes = whole + '\0';
    testing::caught_from<DataError>([&] { step_in(files, "c"); });
    bytes = whole;
  }
  EXPECT_GT(flips, 1000);
  EXPECT_EQ(step_in(files, "c"), 1);
}

TEST(CrashSweep, OtherFilesInACheckpointsFolderStay) {
  ModelFiles files;
  internal::save_image(files, "c", image_of(1));
  for (const char* name : {"notes.txt", "weights.old.safetensors", "weights.x", "manifest.json.mine"}) {
    files.create(fs::path("c") / name);
  }
  internal::save_image(files, "c", image_of(2));
  EXPECT_EQ(files.list("c").size(), 8u);
  internal::remove_checkpoint(files, "c");
  EXPECT_EQ(files.list("c").size(), 4u);
}

}  // namespace
}  // namespace lockstep
