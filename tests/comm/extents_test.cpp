// Memory for values behind the segment that workers of a host share: whose it is, and when it is given back.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <memory>

#include "lockstep/comm/shared_memory/extents.h"
#include "lockstep/comm/shared_memory/segment.h"
#include "tests/support/errors.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kSize = std::size_t{1} << 20;

/// How many bytes the system has given the file.
int64_t bytes_in(const Segment& segment) {
  struct stat about = {};
  EXPECT_EQ(fstat(segment.file(), &about), 0);
  return int64_t{about.st_blocks} * 512;
}

/// Two workers of one job, in one process.
struct Pair {
  Segment mine = Segment::create(2);
  Segment theirs = Segment::map(mine.file(), 2);
  Extents own = Extents(mine.file(), mine.length(), {0, 1});
  Extents other = Extents(theirs.file(), theirs.length(), {0, 1});
};

TEST(Extents, AreGivenAtOnceAndGivenBackWhenAllHaveLetGo) {
  Pair workers;
  const int64_t before = bytes_in(workers.mine);
  auto first = workers.own.allocate(kSize);
  EXPECT_GE(bytes_in(workers.mine), before + static_cast<int64_t>(kSize)) << "a write may meet no memory";
  const int64_t with_one = bytes_in(workers.mine);
  auto second = workers.other.allocate(kSize);
  EXPECT_EQ(bytes_in(workers.mine), with_one) << "the memory is not the same";
  std::memset(first.get(), 7, kSize);
  first.reset();
  EXPECT_EQ(second.get()[kSize - 1], std::byte{7});
  EXPECT_EQ(bytes_in(workers.mine), with_one);
  second.reset();
  EXPECT_EQ(bytes_in(workers.mine), before);
}

TEST(Extents, StayWhereAWorkerHasLetGoBeforeAnotherHasCome) {
  Pair workers;
  std::memset(workers.own.allocate(kSize).get(), 7, kSize);
  EXPECT_EQ(workers.other.allocate(kSize).get()[kSize / 2], std::byte{7});
}

TEST(Extents, OutliveTheSegmentAndTheExtents) {
  std::shared_ptr<std::byte> memory;
  {
    Pair workers;
    memory = workers.own.allocate(kSize);
  }
  std::memset(memory.get(), 7, kSize);
  EXPECT_EQ(memory.get()[kSize - 1], std::byte{7});
}

TEST(Extents, AreNotCountedByAForkedChild) {
  Pair workers;
  auto first = workers.own.allocate(kSize);
  auto second = workers.other.allocate(kSize);
  const int64_t before = bytes_in(workers.mine);
  const pid_t child = fork();
  if (child == 0) {
    first.reset();
    second.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(bytes_in(workers.mine), before);
  std::memset(first.get(), 7, kSize);
  EXPECT_EQ(second.get()[0], std::byte{7});
}

TEST(Extents, ThatTheSystemDoesNotGiveAreAnErrorAndCountAllTheSame) {
  Pair workers;
  for (Extents* one : {&workers.own, &workers.other}) {
    testing::expect_error<ClusterError>([&] { one->allocate(std::size_t{1} << 62); }, "LS-CLUSTER-MEMORY");
  }
  // A call that only one of them could carry out.
  auto first = workers.own.allocate(kSize);
  auto second = workers.other.allocate(kSize);
  std::memset(first.get(), 7, kSize);
  EXPECT_EQ(second.get()[1], std::byte{7});
}

}  // namespace
}  // namespace lockstep::internal
