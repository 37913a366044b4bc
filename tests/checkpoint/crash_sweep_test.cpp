// Every call into the file system fails once, and the machine stops before every one: there is always a whole
// checkpoint, and it is the one from before or the new one.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>

#include "lockstep/checkpoint/folder/checkpoint_folder.h"
#include "lockstep/checkpoint/image.h"
#include "tests/checkpoint/model_files.h"
#include "tests/checkpoint/stepped_image.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using internal::Image;
using testing::image_of;
using testing::kLosses;
using testing::Lost;
using testing::MachineStopped;
using testing::ModelFiles;
using testing::step_in;

/// Saves as the manager does.
void save(ModelFiles& files, int64_t step, int64_t keep = 2) {
  internal::save_image(files, fs::path("runs/a") / internal::checkpoint_name(step), image_of(step));
  internal::remove_old(files, "runs/a", keep, 0);
}

/// The step of the newest one. What has a manifest is whole.
int64_t newest(ModelFiles& files) {
  for (const auto& one : internal::checkpoints_in(files, "runs/a"))
    EXPECT_TRUE(one.problem.empty() || !one.has_manifest);
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
    for (int64_t n = 1; n <= 36; ++n) {
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
    for (int64_t n = 1; n <= 36; ++n) {
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
      EXPECT_EQ(files.list("c").size(), 5u);
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

/// A file of the program's own, with a tensor where it is one for tensors.
void make_own(ModelFiles& files, const fs::path& path) {
  const auto file = files.create(path);
  if (path.extension() == ".safetensors")
    internal::write_tensors(*file, {{"own", torch::ones({3})}}, {{"format", "pt"}});
}

// Also those with a name that a save could choose.
TEST(CrashSweep, OtherFilesInACheckpointsFolderStay) {
  const std::vector<std::string> own{
      "manifest.json.mine",   "manifest.part",           "notes.txt",           "optimizer.7.safetensors",
      "replicas.1.part.mine", "weights.old.safetensors", "weights.safetensors", "weights.x"};
  for (const bool fails : {false, true}) {
    ModelFiles files;
    files.make_folder("c");
    for (const std::string& name : own) make_own(files, fs::path("c") / name);
    for (int64_t n = 1; fails && n < 30; ++n) {
      files.fail_at(n, "No space left on device");
      try {
        internal::save_image(files, "c", image_of(1));
      } catch (const DataError&) {
      }
      files.work_again();
    }
    internal::save_image(files, "c", image_of(1));
    internal::save_image(files, "c", image_of(2));
    EXPECT_EQ(files.list("c").size(), own.size() + 5);
    EXPECT_EQ(step_in(files, "c"), 2);
    internal::remove_checkpoint(files, "c");
    EXPECT_EQ(files.list("c"), own);
  }
}

TEST(CrashSweep, AFolderWithoutAManifestGoesOnlyWhereASaveHasLeftAllOfIt) {
  ModelFiles files;
  for (const int64_t step : {1, 2, 3}) save(files, step, 9);
  for (const int64_t step : {1, 2})
    files.remove_file(fs::path("runs/a") / internal::checkpoint_name(step) / "manifest.json");
  make_own(files, "runs/a/step-0000000002/notes.txt");
  files.make_folder("runs/a/step-0000000007");
  make_own(files, "runs/a/step-0000000007/weights.safetensors");
  files.make_folder("runs/a/step-8");
  files.create("runs/a/step-9");
  save(files, 4);
  EXPECT_EQ(files.list("runs/a"), (std::vector<std::string>{"step-0000000002", "step-0000000003", "step-0000000004",
                                                            "step-0000000007", "step-8", "step-9"}));
  EXPECT_EQ(files.list("runs/a/step-0000000002").size(), 5u);
}

// A network that is away for a moment.
TEST(CrashSweep, WhatCannotBeLookedAtIsNotAbsent) {
  ModelFiles files;
  for (const int64_t step : {1, 2, 3}) save(files, step, 9);
  for (const char* path : {"runs/a/step-0000000003", "runs/a/step-0000000001/manifest.json"}) {
    files.hide(path);
    testing::expect_error<DataError>([&] { internal::whole_checkpoints_in(files, "runs/a"); }, "LS-FILE",
                                     {"Stale file handle"});
    internal::remove_old(files, "runs/a", 1, 0);
    files.hide({});
    EXPECT_EQ(internal::whole_checkpoints_in(files, "runs/a").size(), 3u) << path;
  }
}

TEST(CrashSweep, OneThatCannotBeRemovedDoesNotKeepTheOthers) {
  ModelFiles files;
  for (const int64_t step : {1, 2, 3, 4}) save(files, step, 9);
  files.fail_at(1, "Input/output error");
  internal::remove_old(files, "runs/a", 1, 0);
  EXPECT_EQ(files.list("runs/a"), (std::vector<std::string>{"step-0000000001", "step-0000000004"}));
}

/// Another process saves into the folder, as often as it can, between a reader's look at the manifest and the data.
class ReplacedFiles final : public ModelFiles {
 public:
  explicit ReplacedFiles(int64_t times) : times_(times) {}
  bool has(const fs::path& path) override {
    if (!saving_ && times_ > 0 && path.filename().string().starts_with("weights")) {
      --times_;
      saving_ = true;
      internal::save_image(*this, "c", image_of(++step_));
      saving_ = false;
    }
    return ModelFiles::has(path);
  }
  int64_t step() const { return step_; }

 private:
  int64_t times_;
  int64_t step_ = 1;
  bool saving_ = false;
};

TEST(CrashSweep, AReaderGetsAWholeCheckpointWhileOneIsReplaced) {
  for (const int64_t times : {1, 5}) {
    ReplacedFiles files(times);
    internal::save_image(files, "c", image_of(1));
    EXPECT_EQ(step_in(files, "c"), 1 + times);
  }
  ReplacedFiles files(1000);
  internal::save_image(files, "c", image_of(1));
  testing::expect_error<DataError>([&] { step_in(files, "c"); }, "LS-CHECKPOINT-DAMAGED", {"weights"});
  EXPECT_LT(files.step(), 100) << "a reader does not try for ever";
}

TEST(CrashSweep, ATensorsNameThatFilesCannotHaveIsRefusedBeforeAnythingIsWritten) {
  ModelFiles files;
  Image image = image_of(1);
  image.tensors.front().name = "w\xff";
  testing::expect_error<UsageError>([&] { internal::save_image(files, "c", image); }, "LS-NAME", {"'w?'", "UTF-8"});
  EXPECT_FALSE(files.has("c"));
}

}  // namespace
}  // namespace lockstep
