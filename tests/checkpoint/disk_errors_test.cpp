// Disks that give an error where a checkpoint is read, and folders that cannot be written to.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

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

constexpr const char* kReason = "Input/output error";

TEST(ReadErrors, ARestoreInWhichAnyReadFailsNamesTheFileAndChangesNothing) {
  ModelFiles files;
  OneTraining run;
  const Checkpoint& checkpoint = run.training.checkpoint();
  CheckpointAccess::set_files(run.training.checkpoint(), files);
  run.training.steps(3);
  const std::string saved = run.training.digest();
  checkpoint.save("c");
  run.training.steps(2);
  const std::string before = run.training.digest();
  std::vector<std::string> failed;  // the files of the reads
  for (int64_t n = 1;; ++n) {
    files.fail_read_at(n, kReason);
    try {
      checkpoint.restore("c");
      break;
    } catch (const DataError& error) {
      EXPECT_EQ(error.code(), "LS-FILE") << error.what();
      failed.push_back(files.failed_read().filename().string());
      for (const std::string& part : {files.failed_read().string(), std::string(kReason)}) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << "read " << n << ": " << error.what();
      }
    }
    EXPECT_EQ(run.training.digest(), before) << "read " << n << ", of " << files.failed_read();
    ASSERT_LT(n, 1000);
  }
  EXPECT_TRUE(files.failed_read().empty()) << "the last restore had fewer reads";
  EXPECT_EQ(run.training.digest(), saved);
  for (const char* name : {"manifest.json", "weights.safetensors", "optimizer.safetensors", "replicas.safetensors"}) {
    EXPECT_GE(std::count(failed.begin(), failed.end(), name), 2) << name << ": opened, and read";
  }
}

TEST(ReadErrors, WhereAnyReadFailsTheCheckpointBeforeIsTakenAndTheLogNamesTheFile) {
  ModelFiles files;
  OneTraining run;
  CheckpointAccess::set_files(run.training.checkpoint(), files);
  CheckpointManager manager(run.training.checkpoint(), {.directory = "/runs", .async = false});
  std::vector<std::string> digests;  // of the steps 1 and 2
  for (int i = 0; i < 2; ++i) {
    run.training.steps(1);
    manager.save();
    digests.push_back(run.training.digest());
  }
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  int before = 0;
  for (int64_t n = 1;; ++n) {
    lines.clear();
    files.fail_read_at(n, kReason);
    const auto info = manager.restore_latest();
    ASSERT_TRUE(info) << "read " << n;
    const std::string failed = files.failed_read().string();
    const bool is_of_newest = failed.find("step-0000000002") != std::string::npos;
    EXPECT_EQ(info->step, is_of_newest ? 1 : 2) << "read " << n << ", of " << failed;
    EXPECT_EQ(run.training.digest(), digests[static_cast<std::size_t>(info->step - 1)]) << "read " << n;
    if (failed.empty()) break;
    before += is_of_newest ? 1 : 0;
    ASSERT_EQ(lines.size(), 1u) << "read " << n;
    EXPECT_NE(lines[0].find(failed), std::string::npos) << lines[0];
    EXPECT_NE(lines[0].find(kReason), std::string::npos) << lines[0];
    ASSERT_LT(n, 1000);
  }
  set_log_sink({});
  EXPECT_TRUE(lines.empty());
  EXPECT_GT(before, 16) << "manifest and three files are looked at, opened again and read";
}

/// A file system that was mounted read-only, as long as a test wants it.
class ReadOnlyFiles final : public testing::ForwardedFiles {
 public:
  bool is_read_only = false;

  std::unique_ptr<internal::NewFile> create(const Path& path) override {
    return refuse(path), ForwardedFiles::create(path);
  }
  std::unique_ptr<internal::NewFile> open_to_write(const Path& path) override {
    return refuse(path), ForwardedFiles::open_to_write(path);
  }
  bool make_folder(const Path& folder) override {
    if (!has(folder)) refuse(folder);
    return ForwardedFiles::make_folder(folder);
  }
  void rename(const Path& from, const Path& to) override { refuse(from), ForwardedFiles::rename(from, to); }
  void remove_file(const Path& path) override { refuse(path), ForwardedFiles::remove_file(path); }
  void remove_folder(const Path& folder) override { refuse(folder), ForwardedFiles::remove_folder(folder); }
  std::unique_ptr<internal::FileLock> lock(const Path& path) override {
    return refuse(path), ForwardedFiles::lock(path);
  }

 private:
  void refuse(const Path& path) const {
    if (!is_read_only) return;
    throw DataError("LS-FILE", "'" + path.string() + "': Read-only file system", "a test");
  }
};

class ReadOnlyFolder : public testing::ScratchFolder {};

TEST_F(ReadOnlyFolder, RefusesSavesIsReadAndTheRunGoesOn) {
  ReadOnlyFiles files;
  OneTraining run;
  OneTraining whole;
  CheckpointAccess::set_files(run.training.checkpoint(), files);
  const fs::path folder = path("runs");
  for (const bool async : {false, true}) {
    files.is_read_only = false;
    fs::remove_all(folder);
    CheckpointManager manager(run.training.checkpoint(), {.directory = folder, .async = async});
    run.training.steps(1);
    whole.training.steps(1);
    const fs::path first = manager.save();
    manager.wait();

    files.is_read_only = true;
    run.training.steps(1);
    whole.training.steps(1);
    const auto refused = testing::caught_from<DataError>([&] {
      manager.save();
      manager.wait();
    });
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->code(), "LS-FILE");
    for (const std::string& part : {folder.string(), std::string("Read-only file system")}) {
      EXPECT_NE(std::string(refused->what()).find(part), std::string::npos) << refused->what();
    }
    EXPECT_EQ(manager.latest(), first);
    EXPECT_EQ(run.training.digest(), whole.training.digest()) << "a save that fails changes nothing";

    OneTraining reader;  // which has the folder for reading only, from its start
    CheckpointAccess::set_files(reader.training.checkpoint(), files);
    CheckpointManager other(reader.training.checkpoint(), {.directory = folder});
    expect_error<DataError>([&] { other.claim(); }, "LS-FILE", {"Read-only file system"});
    EXPECT_EQ(other.restore_latest()->step, manager.checkpoint().strategy().step() - 1);
    reader.training.steps(1);
    EXPECT_EQ(reader.training.digest(), run.training.digest());

    files.is_read_only = false;
    run.training.steps(1);
    whole.training.steps(1);
    const fs::path next = manager.save();
    manager.wait();
    EXPECT_EQ(manager.latest(), next);
    EXPECT_EQ(run.training.digest(), whole.training.digest());
  }
}

TEST_F(ReadOnlyFolder, CannotTakeAFolderThatIsNotThere) {
  ReadOnlyFiles files;
  files.is_read_only = true;
  OneTraining run;
  CheckpointAccess::set_files(run.training.checkpoint(), files);
  CheckpointManager manager(run.training.checkpoint(), {.directory = path("none")});
  expect_error<DataError>([&] { manager.claim(); }, "LS-FILE", {path("none"), "Read-only file system"});
  EXPECT_FALSE(manager.restore_latest());
  EXPECT_FALSE(fs::exists(path("none")));
}

}  // namespace
}  // namespace lockstep
