// Which checkpoints stay, and who may save into a folder. Saves beside the training: background_save_test.cpp.
#include "lockstep/checkpoint/checkpoint_manager.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "lockstep/checkpoint/folder/checkpoint_folder.h"
#include "tests/checkpoint/forwarded_files.h"
#include "tests/checkpoint/model_files.h"
#include "tests/checkpoint/training.h"
#include "tests/support/errors.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using internal::CheckpointAccess;
using testing::expect_error;
using testing::ModelFiles;
using testing::OneTraining;

class CheckpointManagerTest : public ::testing::Test {
 protected:
  CheckpointManagerTest() : folder_(fs::temp_directory_path() / ("lockstep-manager-" + std::to_string(getpid()))) {
    fs::remove_all(folder_);
  }
  ~CheckpointManagerTest() override { fs::remove_all(folder_); }
  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& one : fs::directory_iterator(folder_)) {
      if (one.path().filename() != ".lock") found.insert(one.path().filename().string());
    }
    return found;
  }
  const fs::path folder_;
};

TEST_F(CheckpointManagerTest, KeepsTheNewestAndEveryKth) {
  OneTraining run;
  CheckpointManager manager(run.training.checkpoint(), {.directory = folder_, .keep = 2, .keep_every = 4});
  EXPECT_FALSE(manager.latest());
  EXPECT_FALSE(manager.restore_latest());
  for (int i = 0; i < 7; ++i) {
    run.training.steps(1);
    EXPECT_EQ(manager.save(), folder_ / ("step-000000000" + std::to_string(i + 1)));
  }
  manager.wait();
  EXPECT_EQ(names(), (std::set<std::string>{"step-0000000004", "step-0000000006", "step-0000000007"}));
  EXPECT_EQ(manager.latest(), folder_ / "step-0000000007");
  const std::string digest = run.training.digest();
  run.training.steps(2);
  EXPECT_EQ(manager.restore_latest()->step, 7);
  EXPECT_EQ(run.training.digest(), digest);
}

TEST_F(CheckpointManagerTest, RestoresTheOneThatHasReplacedWhatWasListed) {
  std::string digest;
  {
    OneTraining other;
    other.training.steps(2);
    other.training.checkpoint().save(folder_ / "step-0000000002");
    digest = other.training.digest();
  }
  /// Another job makes a checkpoint and removes the one before, between a look at the folder and a look into it.
  struct Moving final : testing::ForwardedFiles {
    std::unique_ptr<internal::OpenFile> open(const fs::path& path) override {
      if (opens++ % every == 0 && moves-- > 0) {
        const fs::path before = path.parent_path();
        const std::string name = internal::checkpoint_name(++step);
        fs::rename(before, before.parent_path() / name);
      }
      return ForwardedFiles::open(path);
    }
    int opens = 0;
    int every = 1;
    int moves = 0;
    int64_t step = 2;
  } files;
  OneTraining run;
  CheckpointAccess::set_files(run.training.checkpoint(), files);
  CheckpointManager manager(run.training.checkpoint(), {.directory = folder_});
  for (const int every : {1, 2, 3, 5, 7, 11}) {
    for (const int moves : {1, 5}) {
      run.training.steps(1);
      files.opens = 1 % every;
      files.every = every;
      files.moves = moves;
      const auto restored = manager.restore_latest();
      ASSERT_TRUE(restored) << "after " << every << " calls, " << moves << " times";
      EXPECT_EQ(restored->step, 2);
      EXPECT_EQ(run.training.digest(), digest);
    }
  }
  files.moves = 1'000'000;
  files.every = 1;
  EXPECT_THROW(manager.restore_latest(), DataError) << "it ends all the same";
}

TEST_F(CheckpointManagerTest, ARunThatWentBackHasItsOwnNewest) {
  OneTraining run;
  CheckpointManager manager(run.training.checkpoint(), {.directory = folder_, .keep = 2});
  for (int i = 0; i < 2; ++i) {
    run.training.steps(3);
    manager.save();
  }
  manager.wait();
  run.training.checkpoint().restore(folder_ / "step-0000000003");
  run.training.steps(1);
  manager.save();
  manager.wait();
  EXPECT_EQ(manager.latest(), folder_ / "step-0000000004") << "saved last, though of an earlier step";
  EXPECT_EQ(names(), (std::set<std::string>{"step-0000000004", "step-0000000006"}));
}

TEST_F(CheckpointManagerTest, ADamagedOneIsPassedOver) {
  OneTraining run;
  CheckpointManager manager(run.training.checkpoint(), {.directory = folder_, .async = false});
  run.training.steps(1);
  manager.save();
  const std::string digest = run.training.digest();
  run.training.steps(1);
  manager.save();
  {
    // A byte of a tensor, which only reading it all can show.
    std::FILE* file = std::fopen((folder_ / "step-0000000002/weights.safetensors").c_str(), "r+b");
    std::fseek(file, -1, SEEK_END);
    const int last = std::fgetc(file);
    std::fseek(file, -1, SEEK_END);
    std::fputc(last ^ 1, file);
    std::fclose(file);
  }
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  EXPECT_EQ(manager.restore_latest()->step, 1);
  set_log_sink({});
  ASSERT_EQ(lines.size(), 1u);
  for (const char* part : {"step-0000000001", "step-0000000002", "weights.safetensors"}) {
    EXPECT_NE(lines[0].find(part), std::string::npos) << lines[0];
  }
  EXPECT_EQ(run.training.digest(), digest);
  fs::resize_file(folder_ / "step-0000000001/optimizer.safetensors", 100);
  expect_error<DataError>([&] { manager.restore_latest(); }, "LS-CHECKPOINT-DAMAGED");
}

TEST_F(CheckpointManagerTest, TwoJobsInOneFolderAreRefused) {
  OneTraining run;
  OneTraining other;
  {
    CheckpointManager manager(run.training.checkpoint(), {.directory = folder_});
    manager.claim();
    CheckpointManager second(other.training.checkpoint(), {.directory = folder_});
    expect_error<ClusterError>([&] { second.claim(); }, "LS-CHECKPOINT-LOCKED", {folder_.string()});
    manager.save();
    manager.wait();
    EXPECT_EQ(second.restore_latest()->step, 0) << "reading needs no lock";
    expect_error<ClusterError>([&] { second.save(); }, "LS-CHECKPOINT-LOCKED");
  }
  CheckpointManager second(other.training.checkpoint(), {.directory = folder_});
  second.save();
}

TEST_F(CheckpointManagerTest, AFolderThatWasRemovedIsTakenAnew) {
  OneTraining first;
  OneTraining second;
  CheckpointManager one(first.training.checkpoint(), {.directory = folder_});
  CheckpointManager two(second.training.checkpoint(), {.directory = folder_});
  one.save();
  one.wait();
  fs::remove_all(folder_);
  one.save();  // makes it again, and locks the new one
  one.wait();
  expect_error<ClusterError>([&] { two.save(); }, "LS-CHECKPOINT-LOCKED");
  fs::remove_all(folder_);
  two.save();  // now it was faster
  two.wait();
  expect_error<ClusterError>([&] { one.save(); }, "LS-CHECKPOINT-LOCKED");
  EXPECT_EQ(names(), std::set<std::string>{"step-0000000000"});
}

TEST_F(CheckpointManagerTest, OddEntriesOfTheFolderStayAndTheOthersGo) {
  OneTraining run;
  const fs::path elsewhere = folder_ / "elsewhere";
  CheckpointManager manager(run.training.checkpoint(), {.directory = folder_, .keep = 2, .async = false});
  fs::create_directories(elsewhere);
  run.training.steps(1);
  const fs::path first = manager.save();
  fs::rename(first, elsewhere / "old");
  fs::create_directory_symlink(elsewhere / "old", first);
  std::ofstream(folder_ / "step-3") << "a file";
  std::ofstream(folder_ / "step-0000000000") << "a file";
  fs::create_directories(folder_ / "step-100");
  save_tensors(folder_ / "step-100" / "weights.safetensors", {{"own", torch::ones({3})}});
  for (int i = 0; i < 4; ++i) {
    run.training.steps(1);
    manager.save();
  }
  EXPECT_EQ(names(), (std::set<std::string>{"elsewhere", "step-0000000000", "step-0000000001", "step-0000000004",
                                            "step-0000000005", "step-100", "step-3"}));
  EXPECT_TRUE(fs::exists(elsewhere / "old" / "manifest.json"));
  EXPECT_TRUE(fs::exists(folder_ / "step-100" / "weights.safetensors"));
}

TEST_F(CheckpointManagerTest, AFolderThatCannotBeLookedAtIsAnErrorAndNotEmpty) {
  OneTraining run;
  ModelFiles files;
  CheckpointAccess::set_files(run.training.checkpoint(), files);
  CheckpointManager manager(run.training.checkpoint(), {.directory = "/runs", .async = false});
  run.training.steps(1);
  manager.save();
  files.hide("/runs/step-0000000001");
  expect_error<DataError>([&] { manager.latest(); }, "LS-FILE", {"Stale file handle"});
  expect_error<DataError>([&] { manager.restore_latest(); }, "LS-FILE", {"Stale file handle"});
  run.training.steps(1);
  expect_error<DataError>([&] { manager.save(); }, "LS-FILE", {"Stale file handle"});
  files.hide({});
  EXPECT_EQ(manager.restore_latest()->step, 1);
}

TEST_F(CheckpointManagerTest, OnlyANameThatIsNotThereCountsAsAbsent) {
  fs::create_directories(folder_);
  internal::Files& files = internal::host_files();
  std::ofstream(folder_ / "file") << "x";
  fs::create_symlink(folder_, folder_ / "link");
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_TRUE(files.has(folder_ / "file"));
  EXPECT_FALSE(files.has(folder_ / "none"));
  EXPECT_FALSE(files.has(folder_ / "file" / "below"));
  EXPECT_TRUE(files.is_folder(folder_));
  EXPECT_FALSE(files.is_folder(folder_ / "file"));
  EXPECT_FALSE(files.is_folder(folder_ / "link"));
  for (const fs::path& path : {folder_ / "loop" / "x", folder_ / std::string(300, 'n')}) {
    expect_error<DataError>([&] { files.has(path); }, "LS-FILE", {folder_.string()});
  }
}

TEST_F(CheckpointManagerTest, TheLockDiesWithItsHolder) {
  fs::create_directories(folder_);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = internal::host_files().lock(folder_ / ".lock");
    const char byte = lock ? 'y' : 'n';
    if (write(ready[1], &byte, 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  EXPECT_EQ(internal::host_files().lock(folder_ / ".lock"), nullptr);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_NE(internal::host_files().lock(folder_ / ".lock"), nullptr);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(CheckpointManagerTest, ARelativeFolderIsThatOfTheMomentWhenTheManagerWasMade) {
  OneTraining run;
  const fs::path before = fs::current_path();
  fs::create_directories(folder_ / "other");
  fs::current_path(folder_);
  CheckpointManager manager(run.training.checkpoint(), {.directory = "runs"});
  manager.save();
  fs::current_path(folder_ / "other");
  run.training.steps(1);
  manager.save();
  manager.wait();
  EXPECT_EQ(manager.latest(), folder_ / "runs" / "step-0000000001");
  fs::current_path(before);
  EXPECT_TRUE(fs::exists(folder_ / "runs" / "step-0000000000" / "manifest.json"));
  EXPECT_TRUE(fs::is_empty(folder_ / "other"));
}

TEST_F(CheckpointManagerTest, AForkedChildIsTold) {
  OneTraining run;
  CheckpointManager manager(run.training.checkpoint(), {.directory = folder_});
  manager.save();
  manager.wait();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    const auto is_refused = [](const auto& call) {
      try {
        call();
      } catch (const UsageError& error) {
        return error.code() == "LS-FORKED" && !error.remedy().empty();
      } catch (...) {
      }
      return false;
    };
    const Checkpoint& checkpoint = run.training.checkpoint();
    int wrong = 0;
    if (!is_refused([&] { manager.save(); })) wrong |= 1;
    if (!is_refused([&] { manager.wait(); })) wrong |= 2;
    if (!is_refused([&] { manager.claim(); })) wrong |= 4;
    if (!is_refused([&] { manager.restore_latest(); })) wrong |= 8;
    if (!is_refused([&] { checkpoint.save(folder_ / "child"); })) wrong |= 16;
    if (!is_refused([&] { checkpoint.restore(folder_ / "step-0000000000"); })) wrong |= 32;
    _exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(names(), (std::set<std::string>{"step-0000000000"}));
  manager.save();
  manager.wait();
}

TEST_F(CheckpointManagerTest, OddOptionsAreRefused) {
  OneTraining run;
  const Checkpoint& checkpoint = run.training.checkpoint();
  expect_error<UsageError>([&] { CheckpointManager(checkpoint, {}); }, "LS-OPTION", {".directory"});
  expect_error<UsageError>([&] { CheckpointManager(checkpoint, {.directory = "x", .keep = 0}); }, "LS-OPTION",
                           {".keep"});
  expect_error<UsageError>([&] { CheckpointManager(checkpoint, {.directory = "x", .keep_every = -1}); }, "LS-OPTION",
                           {".keep_every"});
  EXPECT_FALSE(fs::exists("x"));
}

}  // namespace
}  // namespace lockstep
