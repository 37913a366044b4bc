#include "lockstep/memory/tensor_cache.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace lockstep::internal {
namespace {

constexpr std::size_t kKibi = 1 << 10;
constexpr std::size_t kMebi = 1 << 20;

/// Each test begins without idle memory and ends with the limits that it found.
class TensorCacheTest : public ::testing::Test {
 protected:
  TensorCacheTest() { release_idle_tensor_memory(); }
  ~TensorCacheTest() override { set_tensor_memory_limits(limits_); }

 private:
  const TensorMemoryLimits limits_ = tensor_memory_limits();
};

/// Allocates `count` blocks of the size and frees them all.
void use(std::size_t bytes, int count = 1) {
  std::vector<void*> blocks;
  for (int i = 0; i < count; ++i) blocks.push_back(allocate_tensor_memory(bytes));
  for (void* block : blocks) free_tensor_memory(block);
}

TEST(SizeClasses, HoldWhatTheyAreForAndWasteLessThanAnEighth) {
  std::mt19937_64 random(1);
  std::vector<std::size_t> sizes{1, 63, 64, 65, 511, 512, 513, kLargestBlock};
  for (int shift = 9; shift < 47; ++shift) {
    const std::size_t power = std::size_t{1} << shift;
    sizes.insert(sizes.end(), {power - 1, power, power + 1, power + random() % power});
  }
  for (const std::size_t size : sizes) {
    const uint32_t size_class = size_class_of(size);
    ASSERT_LT(size_class, kSizeClasses);
    const std::size_t given = size_of_class(size_class);
    EXPECT_GE(given, size);
    EXPECT_LT(given - size, std::max<std::size_t>(64, size / 8 + 1)) << size;
    EXPECT_EQ(size_class_of(given), size_class) << size;
    if (size_class > 0) {
      EXPECT_LT(size_of_class(size_class - 1), size);
    }
  }
}

TEST_F(TensorCacheTest, GivesTheSameBlockAgain) {
  const TensorCacheLease lane;
  const ThreadCacheScope scope(lane.cache());
  for (const std::size_t bytes : {std::size_t{4}, std::size_t{1000}, 300 * kKibi, 3 * kMebi}) {
    void* const first = allocate_tensor_memory(bytes);
    free_tensor_memory(first);
    void* const second = allocate_tensor_memory(bytes - 3);  // of the same class
    EXPECT_EQ(second, first) << bytes;
    free_tensor_memory(second);
  }
}

TEST_F(TensorCacheTest, GivesLargeBlocksAgainOnThreadsWithoutACache) {
  void* const first = allocate_tensor_memory(5 * kMebi);
  free_tensor_memory(first);
  void* const second = allocate_tensor_memory(5 * kMebi);
  EXPECT_EQ(second, first);
  free_tensor_memory(second);
  const TensorMemoryUse before = tensor_memory_use();
  use(100 * kKibi);
  EXPECT_EQ(tensor_memory_use().idle, before.idle) << "smaller ones are malloc's";
}

TEST_F(TensorCacheTest, AlignsEveryBlockAndOverlapsNone) {
  const TensorCacheLease lane;
  const ThreadCacheScope scope(lane.cache());
  std::vector<std::pair<unsigned char*, std::size_t>> blocks;
  for (std::size_t bytes = 1; bytes < 9 * kMebi; bytes += bytes / 3 + 1) {
    for (int twice = 0; twice < 2; ++twice) {
      auto* const block = static_cast<unsigned char*>(allocate_tensor_memory(bytes));
      ASSERT_NE(block, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % kBlockAlignment, 0u) << bytes;
      std::memset(block, static_cast<int>(blocks.size() % 251), bytes);
      blocks.emplace_back(block, bytes);
    }
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto [block, bytes] = blocks[i];
    EXPECT_EQ(block[0], i % 251);
    EXPECT_EQ(block[bytes - 1], i % 251);
    free_tensor_memory(block);
  }
}

TEST_F(TensorCacheTest, GivesNothingForZeroBytesAndForMoreThanThereIs) {
  EXPECT_EQ(allocate_tensor_memory(0), nullptr);
  EXPECT_EQ(allocate_tensor_memory(kLargestBlock + 1), nullptr);
  EXPECT_EQ(allocate_tensor_memory(SIZE_MAX), nullptr);
  free_tensor_memory(nullptr);
}

TEST_F(TensorCacheTest, BlocksThatAnotherThreadFreesGoBackToTheirOwnLane) {
  const TensorCacheLease lane;
  const TensorCacheLease other;
  const ThreadCacheScope scope(lane.cache());
  std::set<void*> addresses;
  for (int round = 0; round < 20; ++round) {
    void* const small = allocate_tensor_memory(10 * kKibi);
    void* const large = allocate_tensor_memory(3 * kMebi);
    addresses.insert({small, large});
    std::thread([&] {
      const ThreadCacheScope there(other.cache());
      free_tensor_memory(small);
      free_tensor_memory(large);
    }).join();
  }
  EXPECT_EQ(addresses.size(), 2u) << "memory wanders between lanes";
  EXPECT_EQ(other.cache().idle(), 0u);
}

TEST_F(TensorCacheTest, BlocksOutliveTheThreadAndTheLaneThatMadeThem) {
  const TensorMemoryUse before = tensor_memory_use();
  unsigned char* block = nullptr;
  {
    const TensorCacheLease lane;
    std::thread([&] {
      const ThreadCacheScope scope(lane.cache());
      block = static_cast<unsigned char*>(allocate_tensor_memory(3 * kMebi));
      use(7 * kMebi);
    }).join();
    EXPECT_GT(lane.cache().idle(), 7 * kMebi);
  }
  EXPECT_EQ(tensor_memory_use().idle, before.idle) << "a lane that ended keeps idle memory";
  std::memset(block, 1, 3 * kMebi);
  free_tensor_memory(block);
  EXPECT_EQ(tensor_memory_use().held, before.held) << "nobody is there to use it again";
}

TEST_F(TensorCacheTest, TheNextLaneTakesOverTheCacheOfOneThatEnded) {
  TensorCache* first = nullptr;
  {
    const TensorCacheLease lane;
    first = &lane.cache();
  }
  const TensorCacheLease lane;
  EXPECT_EQ(&lane.cache(), first);
  const ThreadCacheScope scope(lane.cache());
  use(10 * kKibi);
  EXPECT_GT(lane.cache().idle(), 0u) << "it keeps nothing any more";
}

TEST_F(TensorCacheTest, KeepsNoMoreIdleThanItMay) {
  set_tensor_memory_limits({.idle = 40 * kMebi});
  const TensorCacheLease lane;
  const TensorCacheLease other;  // with the cache of all other threads: a third for each
  const ThreadCacheScope scope(lane.cache());
  use(3 * kMebi, 10);
  EXPECT_LE(lane.cache().idle(), 40 * kMebi / 3);
  EXPECT_GT(lane.cache().idle(), 8 * kMebi);
  use(20 * kMebi);
  EXPECT_GT(lane.cache().idle(), 8 * kMebi) << "one block larger than the share drives out all others";
  EXPECT_LT(lane.cache().idle(), 40 * kMebi / 3);
}

TEST_F(TensorCacheTest, ANewLaneMakesTheOthersSharesSmaller) {
  set_tensor_memory_limits({.idle = 40 * kMebi});
  const TensorCacheLease lane;
  const ThreadCacheScope scope(lane.cache());
  use(kMebi, 40);
  EXPECT_GT(lane.cache().idle(), 18 * kMebi);
  const TensorCacheLease second;
  const TensorCacheLease third;
  EXPECT_LE(lane.cache().idle(), 10 * kMebi);
}

TEST_F(TensorCacheTest, GivesBackTheSizesFirstThatWereNotUsedForLongest) {
  const TensorCacheLease lane;
  const ThreadCacheScope scope(lane.cache());
  set_tensor_memory_limits({.idle = 2 * 10 * kMebi});
  void* const stale = allocate_tensor_memory(3 * kMebi);
  void* const used = allocate_tensor_memory(4 * kMebi);
  free_tensor_memory(used);
  free_tensor_memory(stale);
  void* const again = allocate_tensor_memory(4 * kMebi);
  EXPECT_EQ(again, used);
  free_tensor_memory(again);
  use(5 * kMebi);  // 12 MiB are above the share of 10
  EXPECT_GT(lane.cache().idle(), 9 * kMebi);
  EXPECT_LT(lane.cache().idle(), 10 * kMebi);
  void* const still = allocate_tensor_memory(4 * kMebi);
  EXPECT_EQ(still, used) << "the size that was in use had to go";
  free_tensor_memory(still);
}

TEST_F(TensorCacheTest, GivesBackWhatLayIdleForLong) {
  const TensorCacheLease lane;
  const ThreadCacheScope scope(lane.cache());
  use(10 * kMebi, 3);  // of a model that is used no more
  for (int step = 0; step < 200; ++step) use(4 * kMebi, 2);
  EXPECT_GT(lane.cache().idle(), 8 * kMebi);
  EXPECT_LT(lane.cache().idle(), 9 * kMebi);
}

TEST_F(TensorCacheTest, LanesUseWhatThreadsWithoutACacheLeftIdle) {
  void* const weights = allocate_tensor_memory(6 * kMebi);
  free_tensor_memory(weights);
  const TensorCacheLease lane;
  {
    const ThreadCacheScope scope(lane.cache());
    void* const gradient = allocate_tensor_memory(6 * kMebi);
    EXPECT_EQ(gradient, weights);
    free_tensor_memory(gradient);
  }
  EXPECT_GT(lane.cache().idle(), 6 * kMebi) << "it belongs to the lane now";
  void* const other = allocate_tensor_memory(6 * kMebi);
  EXPECT_NE(other, weights) << "and does not wander back";
  free_tensor_memory(other);
}

TEST_F(TensorCacheTest, WhatThreadsWithoutACacheLeftIdleGoesBackWhileLanesWork) {
  use(50 * kMebi);
  const TensorCacheLease lane;
  const ThreadCacheScope scope(lane.cache());
  for (int step = 0; step < 300; ++step) use(4 * kMebi, 2);
  EXPECT_LT(tensor_memory_use().idle, 20 * kMebi);
  EXPECT_GT(lane.cache().idle(), 8 * kMebi);
}

TEST_F(TensorCacheTest, KeepsWhatIsUsedInEveryStep) {
  const TensorCacheLease lane;
  const ThreadCacheScope scope(lane.cache());
  std::set<void*> addresses;
  for (int step = 0; step < 500; ++step) {
    for (const std::size_t bytes : {3 * kMebi, 5 * kMebi, 900 * kKibi}) {
      void* const block = allocate_tensor_memory(bytes);
      addresses.insert(block);
      free_tensor_memory(block);
    }
  }
  EXPECT_EQ(addresses.size(), 3u);
}

TEST_F(TensorCacheTest, GivesIdleMemoryBackBeforeItHoldsMoreThanItMay) {
  const TensorCacheLease lane;
  const TensorCacheLease other;
  const ThreadCacheScope scope(lane.cache());
  std::thread([&] {
    const ThreadCacheScope there(other.cache());
    use(20 * kMebi);
  }).join();
  use(10 * kMebi);
  const std::size_t held = tensor_memory_use().held;
  set_tensor_memory_limits({.held = held + 16 * kMebi});
  void* const first = allocate_tensor_memory(15 * kMebi);
  EXPECT_GT(lane.cache().idle(), 0u) << "there was room";
  void* const second = allocate_tensor_memory(9 * kMebi);
  EXPECT_EQ(lane.cache().idle(), 0u);
  EXPECT_GT(other.cache().idle(), 0u) << "one's own goes before another's";
  void* const third = allocate_tensor_memory(6 * kMebi);
  EXPECT_EQ(other.cache().idle(), 0u);
  EXPECT_LE(tensor_memory_use().held, held + 17 * kMebi);
  for (void* block : {first, second, third}) free_tensor_memory(block);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need all of the address space
TEST_F(TensorCacheTest, WhereMemoryRunsOutEverythingIdleServesFirst) {
  const TensorCacheLease lane;
  const TensorCacheLease other;
  const ThreadCacheScope scope(lane.cache());
  std::thread([&] {
    const ThreadCacheScope there(other.cache());
    use(600 * kMebi);
  }).join();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit tight = before;
  tight.rlim_cur = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + 100 * kMebi;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  void* const fits = allocate_tensor_memory(500 * kMebi);
  void* const never = allocate_tensor_memory(900 * kMebi);
  setrlimit(RLIMIT_AS, &before);
  EXPECT_NE(fits, nullptr);
  EXPECT_EQ(never, nullptr);
  EXPECT_EQ(other.cache().idle(), 0u);
  free_tensor_memory(fits);
}
#endif

TEST_F(TensorCacheTest, ManyThreadsMayAllocateAndFreeEachOthersBlocks) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 3000;
  const TensorMemoryUse before = tensor_memory_use();
  std::array<std::atomic<unsigned char*>, 64> slots{};
  std::atomic<int> wrong{0};
  const auto work = [&](int thread) {
    const TensorCacheLease lane;
    std::mt19937_64 random(static_cast<uint64_t>(thread));
    for (int round = 0; round < kRounds; ++round) {
      const ThreadCacheScope scope(lane.cache());
      if (round % 7 == 0) exchange_thread_cache(nullptr);
      if (round % 501 == 500) release_idle_tensor_memory();
      if (round % 701 == 700) set_tensor_memory_limits({.idle = (random() % 64 + 1) * kMebi});
      const std::size_t bytes = random() % 50 == 0 ? 2 * kMebi + random() % kMebi : random() % (20 * kKibi) + 1;
      auto* const block = static_cast<unsigned char*>(allocate_tensor_memory(bytes));
      const auto mark = static_cast<unsigned char>(random());
      block[0] = block[bytes - 1] = mark;
      if (block[0] != mark) ++wrong;
      free_tensor_memory(slots[random() % slots.size()].exchange(block));
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
  for (auto& slot : slots) free_tensor_memory(slot.load());
  release_idle_tensor_memory();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(tensor_memory_use().held, before.held) << "bytes are lost or counted twice";
}

}  // namespace
}  // namespace lockstep::internal
