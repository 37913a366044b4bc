// Saves of a manager beside the training: what they write, and where their errors show.
#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/checkpoint/folder/checkpoint_folder.h"
#include "lockstep/core/log.h"
#include "tests/checkpoint/forwarded_files.h"
#include "tests/checkpoint/model_files.h"
#include "tests/checkpoint/training.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using internal::CheckpointAccess;
using testing::expect_error;
using testing::ModelFiles;
using testing::OneTraining;

class BackgroundSave : public testing::ScratchFolder {};

/// Holds every call into the file system until it is let go.
class SlowFiles final : public testing::ForwardedFiles {
 public:
  void let_go() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  std::unique_ptr<internal::NewFile> create(const fs::path& path) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !held_; });
    return ForwardedFiles::create(path);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = true;
};

TEST_F(BackgroundSave, WhatIsWrittenIsTheStateOfItsStepAndNeverALaterOne) {
  OneTraining run;
  run.training.steps(2);
  SlowFiles slow;
  CheckpointAccess::set_files(run.training.checkpoint(), slow);
  CheckpointManager manager(run.training.checkpoint(), {.directory = folder_});
  const std::string digest = run.training.digest();
  manager.save();
  EXPECT_FALSE(manager.latest()) << "what is being written is not there";
  run.training.steps(3);  // while it is written
  slow.let_go();
  manager.wait();
  OneTraining second;
  EXPECT_EQ(second.training.checkpoint().restore(*manager.latest()).step, 2);
  EXPECT_EQ(second.training.digest(), digest);
}

TEST_F(BackgroundSave, ASaveIntoTheFolderThatIsBeingWrittenComesAfterIt) {
  OneTraining run;
  CheckpointManager manager(run.training.checkpoint(), {.directory = folder_});
  for (int i = 0; i < 5; ++i) {
    run.training.steps(1);
    const fs::path folder = manager.save();
    run.training.checkpoint().save(folder);
    manager.wait();
    EXPECT_EQ(run.training.checkpoint().restore(folder).step, i + 1);
  }
}

TEST_F(BackgroundSave, WhatWasJustSavedStaysThoughAnotherSaveHasWrittenOverIt) {
  OneTraining run;
  CheckpointManager manager(run.training.checkpoint(), {.directory = folder_, .keep = 3});
  for (int i = 0; i < 3; ++i) {
    run.training.steps(1);
    manager.save();
    manager.wait();
  }
  run.training.steps(1);
  const fs::path folder = folder_ / internal::checkpoint_name(4);
  run.training.checkpoint().save(folder);  // older than the manager's three
  internal::remove_old(CheckpointAccess::files(run.training.checkpoint()), folder_, 3, 0, folder);
  EXPECT_EQ(run.training.checkpoint().restore(folder).step, 4);
}

TEST_F(BackgroundSave, AnErrorShowsAtTheNextCallAndTheOneAfterItSaves) {
  OneTraining run;
  ModelFiles files;
  CheckpointAccess::set_files(run.training.checkpoint(), files);
  CheckpointManager manager(run.training.checkpoint(), {.directory = "/runs"});
  run.training.steps(1);
  manager.save();
  manager.wait();
  run.training.steps(1);
  files.fail_at(6, "No space left on device");
  manager.save();
  run.training.steps(1);
  expect_error<DataError>([&] { manager.save(); }, "LS-FILE", {"No space left on device"});
  EXPECT_EQ(manager.latest(), fs::path("/runs/step-0000000001")) << "it is as if the save had not begun";
  manager.save();
  manager.wait();
  EXPECT_EQ(manager.latest(), fs::path("/runs/step-0000000003"));
  run.training.steps(1);
  files.fail_at(6, "Input/output error");
  manager.save();
  expect_error<DataError>([&] { manager.wait(); }, "LS-FILE", {"Input/output error"});
  manager.wait();  // it was told once
}

TEST_F(BackgroundSave, TheDestructorWaitsAndLogsAnErrorThatNobodyAskedFor) {
  OneTraining run;
  ModelFiles files;
  CheckpointAccess::set_files(run.training.checkpoint(), files);
  {
    CheckpointManager manager(run.training.checkpoint(), {.directory = "/runs"});
    manager.save();
  }
  EXPECT_EQ(internal::whole_checkpoints_in(files, "/runs").size(), 1u);
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel level, std::string_view line) {
    if (level == LogLevel::kError) lines.emplace_back(line);
  });
  {
    CheckpointManager manager(run.training.checkpoint(), {.directory = "/runs"});
    run.training.steps(1);
    files.fail_at(6, "Input/output error");
    manager.save();
  }
  set_log_sink({});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("Input/output error"), std::string::npos) << lines[0];
}

}  // namespace
}  // namespace lockstep
