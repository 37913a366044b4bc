// What a save asks the system for, and in which order: a file system in memory cannot show that.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/checkpoint/image.h"
#include "tests/checkpoint/stepped_image.h"
#include "tests/support/scratch_folder.h"

namespace {

std::mutex noted_mutex;
std::vector<std::string> noted;  // calls that the system has done: "fsync c", "rename a b"

std::string last_part(const std::string& path) { return std::filesystem::path(path).filename().string(); }

int note(int result, const std::string& call) {
  const std::lock_guard lock(noted_mutex);
  if (result == 0) noted.push_back(call);
  return result;
}

/// The system's own function.
template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int fsync(int fd) {
  std::error_code ignored;
  const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), ignored);
  return note(next<int(int)>("fsync")(fd), "fsync " + last_part(path));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  return note(next<int(const char*, const char*)>("rename")(from, to),
              "rename " + last_part(from) + " " + last_part(to));
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
  work();
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
