// The main function of test programs: gtest's, or that of a worker process.
#include <gtest/gtest.h>

#include "tests/support/worker_processes.h"

#if defined(__SANITIZE_ADDRESS__)  // tests ask for more memory than there is: that is an answer, not a mistake
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
#elif defined(__SANITIZE_THREAD__)
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }
#endif

int main(int argc, char** argv) {
  lockstep::testing::run_body_of_worker();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
