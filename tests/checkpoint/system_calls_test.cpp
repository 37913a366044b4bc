// What a save asks the system for, in which order, and what becomes of it where the system does not have the call: a
// file system in memory cannot show that.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <torch/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/image.h"
#include "lockstep/lockstep.h"
#include "tests/checkpoint/stepped_image.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace {

std::atomic<bool> notes = false;  // whether calls are noted: for one test of this program, and no other
std::mutex noted_mutex;
std::vector<std::string> noted;  // calls that the system has done: "fsync c", "rename a b"; guarded by noted_mutex

std::string last_part(const std::string& path) { return std::filesystem::path(path).filename().string(); }

int note(int result, std::string call) {
  if (result != 0) return result;  // errno stays as it is
  const std::lock_guard lock(noted_mutex);
  noted.push_back(std::move(call));
  return result;
}

/// For one test: the errno with which these calls end; 0: they are the system's.
std::atomic<int> flock_error = 0;
std::atomic<int> file_error = 0;    // of fsync
std::atomic<int> folder_error = 0;  // of fsync

/// The error that an fsync is to end with.
int sync_error(int fd) {
  struct stat status = {};
  if (file_error == 0 && folder_error == 0) return 0;
  return ::fstat(fd, &status) == 0 && S_ISDIR(status.st_mode) ? folder_error : file_error;
}

/// The system's own function.
template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int flock(int fd, int operation) noexcept {
  if (flock_error != 0) return errno = flock_error, -1;
  return next<int(int, int)>("flock")(fd, operation);
}

extern "C" int fsync(int fd) {
  auto* const call = next<int(int)>("fsync");
  if (const int error = sync_error(fd)) return errno = error, -1;
  if (!notes) return call(fd);
  std::error_code ignored;
  std::string text =
      "fsync " + last_part(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), ignored));
  return note(call(fd), std::move(text));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  auto* const call = next<int(const char*, const char*)>("rename");
  if (!notes) return call(from, to);
  std::string text = "rename " + last_part(from) + " " + last_part(to);
  return note(call(from, to), std::move(text));
}

namespace lockstep {
namespace {

/// The calls while `work` runs.
template <class Work>
std::vector<std::string> calls_in(const Work& work) {
  {
    const std::lock_guard lock(noted_mutex);
    noted.clear();
  }
  notes = true;
  work();
  notes = false;
  const std::lock_guard lock(noted_mutex);
  return noted;
}

using Calls = std::vector<std::string>;

class SystemCalls : public testing::ScratchFolder {};

TEST_F(SystemCalls, ASaveSyncsTheFilesAndTheFolderBeforeTheManifestGetsItsNameAndTheFolderAfterIt) {
  const auto save = [&] { internal::save_image(internal::host_files(), path("c"), testing::image_of(1)); };
  EXPECT_EQ(calls_in(save),
            (Calls{"fsync " + last_part(folder_),  // which has the folder's name now
                   "fsync weights.0.part", "fsync optimizer.0.part", "fsync replicas.0.part", "fsync tables.0.part",
                   "rename weights.0.part weights.safetensors", "rename optimizer.0.part optimizer.safetensors",
                   "rename replicas.0.part replicas.safetensors", "rename tables.0.part tables.safetensors",
                   "fsync manifest.0.part", "fsync c", "rename manifest.0.part manifest.json", "fsync c"}));
}

TEST_F(SystemCalls, ARemovalSyncsTheFolderOnceItIsNoCheckpoint) {
  internal::save_image(internal::host_files(), path("c"), testing::image_of(1));
  EXPECT_EQ(calls_in([&] { internal::remove_checkpoint(internal::host_files(), path("c")); }), Calls{"fsync c"});
}

/// A run with one variable, and what the log says of it.
class UnprotectedFolder : public testing::ScratchFolder {
 protected:
  UnprotectedFolder() {
    set_log_sink([this](LogLevel level, std::string_view line) {
      if (level == LogLevel::kWarning) warnings_.emplace_back(line);
    });
  }
  ~UnprotectedFolder() override {
    flock_error = file_error = folder_error = 0;
    set_log_sink({});
  }
  /// The warnings that name the folder of checkpoints.
  std::vector<std::string> of_folder() const {
    std::vector<std::string> found;
    for (const std::string& one : warnings_) {
      if (one.find(quoted("runs")) != std::string::npos) found.push_back(one);
    }
    return found;
  }
  CheckpointManagerOptions options() const { return {.directory = path("runs"), .async = false}; }

  MirroredStrategy strategy_{{.devices = {"cpu:0"}, .replicas = 1, .seed = 1}};
  const Variable variable_ = strategy_.make_variable(torch::ones({2}), {.name = "w"});
  const Checkpoint checkpoint_{strategy_};
  std::vector<std::string> warnings_;
};

constexpr int kUnsupported[] = {EOPNOTSUPP, ENOSYS, EINVAL, ENOLCK};

TEST_F(UnprotectedFolder, WithoutLocksSavesAndSaysSoWhenTheManagerIsMade) {
  for (const int error : kUnsupported) {
    warnings_.clear();
    flock_error = error;
    CheckpointManager manager(checkpoint_, options());
    ASSERT_EQ(of_folder().size(), 1u) << std::strerror(error);
    EXPECT_NE(of_folder().front().find("flock"), std::string::npos) << of_folder().front();
    manager.claim();
    manager.save();
    manager.save();
    EXPECT_EQ(of_folder().size(), 1u) << "it is said once";
    EXPECT_TRUE(manager.restore_latest());
    flock_error = 0;
  }
}

TEST_F(UnprotectedFolder, WithoutSyncsOfFoldersOrFilesSavesAndSaysSoWhenTheManagerIsMade) {
  for (const int error : {EOPNOTSUPP, ENOSYS, EINVAL, EBADF}) {
    warnings_.clear();
    folder_error = error;
    CheckpointManager manager(checkpoint_, options());
    ASSERT_EQ(of_folder().size(), 1u) << std::strerror(error);
    EXPECT_NE(of_folder().front().find("name"), std::string::npos) << of_folder().front();
    manager.save();
    EXPECT_EQ(of_folder().size(), 1u);
    folder_error = 0;
  }
  warnings_.clear();
  file_error = EINVAL;
  CheckpointManager manager(checkpoint_, options());
  EXPECT_EQ(of_folder().size(), 1u);
  manager.save();
  EXPECT_TRUE(manager.latest());
}

TEST_F(UnprotectedFolder, IsRefusedWhereProtectionIsRequired) {
  CheckpointManagerOptions strict = options();
  strict.require_protection = true;
  CheckpointManager(checkpoint_, strict).save();
  const auto refused = [&] {
    testing::expect_error<DataError>([&] { CheckpointManager(checkpoint_, strict); }, "LS-CHECKPOINT-UNPROTECTED",
                                     {quoted("runs")});
  };
  flock_error = ENOLCK;
  refused();
  flock_error = 0;
  folder_error = EINVAL;
  refused();
}

TEST_F(UnprotectedFolder, AnErrorOfTheDiskStaysAnError) {
  for (const int error : {EIO, ENOSPC, EROFS, EDQUOT}) {
    const auto saves = [&] { CheckpointManager(checkpoint_, options()).save(); };
    flock_error = error;
    testing::expect_error<DataError>(saves, "LS-FILE", {std::strerror(error)});
    flock_error = 0;
    folder_error = error;
    testing::expect_error<DataError>(saves, "LS-FILE", {std::strerror(error)});
    folder_error = 0;
    file_error = error;
    testing::expect_error<DataError>(saves, "LS-FILE", {std::strerror(error)});
    file_error = 0;
  }
  EXPECT_TRUE(of_folder().empty());
}

TEST_F(UnprotectedFolder, IsLookedAtWithoutLeavingAnythingThere) {
  CheckpointManager manager(checkpoint_, options());
  EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "the folder itself is made by the first save";
  EXPECT_TRUE(warnings_.empty());
}

}  // namespace
}  // namespace lockstep
