// The main function of test programs: gtest's, or that of a worker process.
#include <gtest/gtest.h>

#include "tests/support/worker_processes.h"

int main(int argc, char** argv) {
  lockstep::testing::run_body_of_worker();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
