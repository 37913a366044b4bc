#include "lockstep/memory/memory_limit.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace lockstep::internal {
namespace {

/// A folder that stands for the root of a file system, with files as a kernel would show them.
class FakeRoot {
 public:
  FakeRoot() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-root-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  void write(const std::string& file, const std::string& text) const {
    const std::filesystem::path target = path_ + file;
    std::filesystem::create_directories(target.parent_path());
    std::ofstream(target) << text << '\n';
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::size_t machine() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

TEST(MemoryLimit, IsTheMachinesWithoutControlGroups) {
  const FakeRoot root;
  EXPECT_EQ(memory_limit(root.path()), machine());
}

TEST(MemoryLimit, IsTheSmallestOfTheControlGroupsAround) {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "0::/jobs/one");
  root.write("/sys/fs/cgroup/jobs/one/memory.max", "max");
  root.write("/sys/fs/cgroup/jobs/memory.max", "3000000");
  EXPECT_EQ(memory_limit(root.path()), 3000000u);
  root.write("/sys/fs/cgroup/jobs/one/memory.max", "2000000");
  EXPECT_EQ(memory_limit(root.path()), 2000000u);
}

TEST(MemoryLimit, IsSeenInAContainerThatDoesNotShowItsPath) {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "0::/../outside/unseen");
  root.write("/sys/fs/cgroup/memory.max", "1000000");
  EXPECT_EQ(memory_limit(root.path()), 1000000u);
}

TEST(MemoryLimit, UnderstandsControlGroupsOfTheFirstVersion) {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "5:cpu,cpuacct:/jobs\n4:memory:/jobs\n0::/");
  root.write("/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "4000000");
  root.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_EQ(memory_limit(root.path()), 4000000u);
}

}  // namespace
}  // namespace lockstep::internal
