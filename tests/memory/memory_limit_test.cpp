#include "lockstep/memory/memory_limit.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "tests/support/fake_root.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::FakeRoot;

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
