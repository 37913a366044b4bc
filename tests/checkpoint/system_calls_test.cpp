// What a save asks the system for, and in which order: a file system in memory cannot show that.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/image.h"
#include "tests/checkpoint/stepped_image.h"
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

/// The system's own function.
template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int fsync(int fd) {
  auto* const call = next<int(int)>("fsync");
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
                   "fsync weights.0.part", "fsync optimizer.0.part", "fsync replicas.0.part",
                   "rename weights.0.part weights.safetensors", "rename optimizer.0.part optimizer.safetensors",
                   "rename replicas.0.part replicas.safetensors", "fsync manifest.0.part", "fsync c",
                   "rename manifest.0.part manifest.json", "fsync c"}));
}

TEST_F(SystemCalls, ARemovalSyncsTheFolderOnceItIsNoCheckpoint) {
  internal::save_image(internal::host_files(), path("c"), testing::image_of(1));
  EXPECT_EQ(calls_in([&] { internal::remove_checkpoint(internal::host_files(), path("c")); }), Calls{"fsync c"});
}

}  // namespace
}  // namespace lockstep
