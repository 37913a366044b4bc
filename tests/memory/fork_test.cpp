// A child that is forked while other threads allocate can allocate too.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "lockstep/memory/tensor_cache.h"

namespace lockstep::internal {
namespace {

TEST(TensorCache, AForkedChildFindsNoLockHeld) {
  std::atomic<bool> done{false};
  const TensorCacheLease shared_by_all;
  std::vector<std::thread> busy;
  for (int i = 0; i < 2; ++i) {
    busy.emplace_back([&] {
      const ThreadCacheScope scope(shared_by_all.cache());
      while (!done) {
        void* const memory = allocate_tensor_memory(100);
        free_tensor_memory(memory);
        tensor_memory_use();
      }
    });
  }
  int failed = 0;
  for (int i = 0; i < 100 && failed == 0; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // a child that hangs ends by its signal
      const ThreadCacheScope scope(shared_by_all.cache());
      free_tensor_memory(allocate_tensor_memory(100));
      tensor_memory_use();
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    failed += WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
  }
  done = true;
  for (std::thread& one : busy) one.join();
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace lockstep::internal
