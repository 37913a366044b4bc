#include "lockstep/replica/pool/cores.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <torch/types.h>

#include <set>
#include <thread>

#include "tests/support/fake_root.h"
#include "tests/support/programs.h"
#include "tests/support/run_program.h"

namespace lockstep {
namespace {

using internal::cores_of_this_process;
using internal::cores_without_binding;
using internal::cpu_quota;
using testing::FakeRoot;
using testing::lanes;

TEST(CoresWithoutBinding, AreThoseOfAllPlacesWhereTheMaskIsTheFirst) {
  EXPECT_EQ(cores_without_binding({2}, {{2}, {3}, {5}}), (std::vector<int>{2, 3, 5}));
  EXPECT_EQ(cores_without_binding({0, 1}, {{0, 1}, {2, 3}}), (std::vector<int>{0, 1, 2, 3}));
}

TEST(CoresWithoutBinding, AreTheMaskOtherwise) {
  EXPECT_EQ(cores_without_binding({3}, {{2}, {3}}), (std::vector<int>{3})) << "the program has set it itself";
  EXPECT_EQ(cores_without_binding({0, 1}, {}), (std::vector<int>{0, 1}));
}

std::string text_of(const std::vector<int>& cores) {
  std::string text;
  for (const int core : cores) text += std::to_string(core) + " ";
  return text;
}

/// Run by the next test in a process of its own.
TEST(CoresOfThisProcess, DISABLED_ArePrinted) {
  torch::ones({2});  // so that LibTorch and its OpenMP are there
  std::printf("cores: %s.\n", text_of(cores_of_this_process()).c_str());
}

TEST(CoresOfThisProcess, AreAllThatAreAllowedWhateverOpenMPBinds) {
  const std::vector<int> cores = cores_of_this_process();
  const auto in_a_process_of_its_own = [](const std::string& before) {
    const auto result =
        testing::run_program(before + " /proc/" + std::to_string(getpid()) + "/exe",
                             "--gtest_also_run_disabled_tests --gtest_filter=CoresOfThisProcess.DISABLED_ArePrinted");
    const std::size_t begin = result.output.find("cores: ");
    return begin == std::string::npos ? result.output
                                      : result.output.substr(begin + 7, result.output.find(".\n", begin) - begin - 7);
  };
  const std::string all = text_of(cores);
  const std::string range = std::to_string(cores.front()) + "-" + std::to_string(cores.back());
  EXPECT_EQ(in_a_process_of_its_own("env"), all);
  EXPECT_EQ(in_a_process_of_its_own("env OMP_PROC_BIND=true"), all);
  EXPECT_EQ(in_a_process_of_its_own("env OMP_PROC_BIND=close"), all);
  EXPECT_EQ(in_a_process_of_its_own("env OMP_PLACES=cores"), all);
  EXPECT_EQ(in_a_process_of_its_own("env OMP_PLACES=threads OMP_PROC_BIND=spread"), all);
  EXPECT_EQ(in_a_process_of_its_own("env GOMP_CPU_AFFINITY=" + range), all);
  const std::string last = std::to_string(cores.back());
  EXPECT_EQ(in_a_process_of_its_own("taskset -c " + last), last + " ");
  EXPECT_EQ(in_a_process_of_its_own("env OMP_PROC_BIND=true taskset -c " + last), last + " ");
}

TEST(CoresOfThisProcess, AreAllWhileARunHoldsTheCaller) {
  const std::vector<int> cores = cores_of_this_process();
  MirroredStrategy strategy(
      {.devices = lanes(1), .replicas = 2});  // holds the caller in every run, where cores are idle
  for (int run = 0; run < 3; ++run) {
    for (const auto& seen : strategy.run([](ReplicaContext&) { return cores_of_this_process(); })) {
      EXPECT_EQ(seen, cores);
    }
  }
  EXPECT_EQ(cores_of_this_process(), cores);
}

TEST(CpuQuota, IsTheSmallestOfTheControlGroupsRoundedUp) {
  const FakeRoot root;
  EXPECT_EQ(cpu_quota(root.path()), std::nullopt);
  root.write("/proc/self/cgroup", "0::/jobs/one");
  root.write("/sys/fs/cgroup/jobs/one/cpu.max", "max 100000");
  EXPECT_EQ(cpu_quota(root.path()), std::nullopt);
  root.write("/sys/fs/cgroup/jobs/cpu.max", "400000 100000");
  EXPECT_EQ(cpu_quota(root.path()), 4);
  root.write("/sys/fs/cgroup/jobs/one/cpu.max", "150000 100000");
  EXPECT_EQ(cpu_quota(root.path()), 2);
}

TEST(CpuQuota, IsReadFromTheFirstVersionToo) {
  const FakeRoot root;
  root.write("/proc/self/cgroup", "4:cpuset:/jobs\n3:cpuacct,cpu:/jobs");
  root.write("/sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us", "-1");
  root.write("/sys/fs/cgroup/cpu/jobs/cpu.cfs_period_us", "100000");
  EXPECT_EQ(cpu_quota(root.path()), std::nullopt);
  root.write("/sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us", "50000");
  EXPECT_EQ(cpu_quota(root.path()), 1);
}

/// The cores that a strategy's lanes are pinned to.
std::set<int> cores_of_lanes(MirroredStrategy& strategy) {
  std::set<int> cores;
  for (const cpu_set_t& mask : strategy.run([](ReplicaContext&) {
         cpu_set_t own;
         sched_getaffinity(0, sizeof own, &own);
         return own;
       })) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &mask)) cores.insert(core);
    }
  }
  return cores;
}

TEST(Strategies, OfOneProcessTakeDifferentCoresWhereThereAreEnough) {
  if (cores_of_this_process().size() < 2) GTEST_SKIP() << "one core: nothing to tell apart";
  MirroredStrategy first({.devices = lanes(1), .replicas = 2});
  {
    MirroredStrategy second({.devices = lanes(1), .replicas = 2});
    EXPECT_NE(cores_of_lanes(first), cores_of_lanes(second));
  }
  MirroredStrategy third({.devices = lanes(1), .replicas = 2});
  EXPECT_NE(cores_of_lanes(first), cores_of_lanes(third)) << "what the second one held is free again";
}

TEST(Lanes, ThatAreNotPinnedMayUseAllCoresWhoeverMadeThem) {
  const std::vector<int> cores = cores_of_this_process();
  std::set<int> seen;
  std::thread narrow([&] {
    internal::set_affinity_of_this_thread({cores.front()});
    MirroredStrategy strategy({.devices = lanes(static_cast<int>(cores.size()) + 1)});
    const auto masks = strategy.run([](ReplicaContext&) {
      cpu_set_t own;
      sched_getaffinity(0, sizeof own, &own);
      return own;
    });
    for (const int core : cores) {
      if (CPU_ISSET(core, &masks[1])) seen.insert(core);
    }
  });
  narrow.join();
  EXPECT_EQ(seen, std::set<int>(cores.begin(), cores.end()));
}

}  // namespace
}  // namespace lockstep
