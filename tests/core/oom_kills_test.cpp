// The counters of the kernel's out-of-memory killer, as they stand in files.
#include "lockstep/core/process/oom_kills.h"

#include <gtest/gtest.h>

#include <optional>

#include "tests/support/fake_root.h"

namespace lockstep::internal {
namespace {

using lockstep::testing::FakeRoot;

TEST(OomKills, AreThoseOfTheOwnControlGroup) {
  const FakeRoot unified;
  unified.write("/proc/self/cgroup", "0::/outer/inner");
  EXPECT_EQ(oom_kills(unified.path()), std::nullopt);
  unified.write("/sys/fs/cgroup/outer/memory.events", "low 0\noom 9\noom_kill 9");
  EXPECT_EQ(oom_kills(unified.path()), 9) << "inside a container the inner group's path may be missing";
  unified.write("/sys/fs/cgroup/outer/inner/memory.events", "low 0\noom 4\noom_kill 3\noom_group_kill 1");
  EXPECT_EQ(oom_kills(unified.path()), 3);

  const FakeRoot split;
  split.write("/proc/self/cgroup", "9:cpu:/x\n4:memory:/job\n0::/");
  split.write("/sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2");
  EXPECT_EQ(oom_kills(split.path()), 2);
}

TEST(OomKills, OfTheMachineStandInItsOwnFile) {
  const FakeRoot root;
  EXPECT_EQ(oom_kills_of_machine(root.path()), std::nullopt);
  root.write("/proc/vmstat", "pgfault 77\noom_kill 5\nnuma_hit 3");
  EXPECT_EQ(oom_kills_of_machine(root.path()), 5);
}

TEST(OomWatch, TellsTheGroupsKillsBeforeThoseOfTheMachine) {
  const FakeRoot root;
  EXPECT_EQ(OomWatch(root.path()).text(), "");
  root.write("/proc/self/cgroup", "0::/job");
  root.write("/sys/fs/cgroup/job/memory.events", "oom_kill 3");
  root.write("/proc/vmstat", "oom_kill 8");
  const OomWatch watch(root.path());
  EXPECT_EQ(watch.text(), "");
  root.write("/proc/vmstat", "oom_kill 9");
  EXPECT_EQ(watch.text(),
            "; the kernel's out-of-memory killer has killed 1 process of this machine since the run began");
  root.write("/sys/fs/cgroup/job/memory.events", "oom_kill 5");
  EXPECT_EQ(watch.text(),
            "; the kernel's out-of-memory killer has killed 2 processes of this control group since the run began");
}

}  // namespace
}  // namespace lockstep::internal
