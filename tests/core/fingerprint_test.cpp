#include "lockstep/core/fingerprint.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/autocast.h"

namespace lockstep::internal {
namespace {

TEST(Platform, IsOneTextAndOneFingerprintForAllThreadsThatAskAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kTimes = 20'000;
  const std::string description = platform_description();
  const std::string fingerprint = platform_fingerprint();
  EXPECT_NE(description.find("LibTorch "), std::string::npos) << description;
  EXPECT_EQ(fingerprint.size(), 16U) << fingerprint;

  std::vector<int> different(kThreads);
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      start.arrive_and_wait();
      for (int i = 0; i < kTimes; ++i) {
        if (platform_description() != description || platform_fingerprint() != fingerprint) ++different[thread];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(different, std::vector<int>(kThreads));
}

TEST(Platform, NamesTheVectorUnit) {
  const std::string description = platform_description();
#if defined(__aarch64__)
  constexpr const char* kUnits[] = {"(NEON)", "(SVE of ", "(SVE2 of "};
#else
  constexpr const char* kUnits[] = {"CPU capability "};
#endif
  EXPECT_TRUE(std::any_of(std::begin(kUnits), std::end(kUnits), [&](const char* unit) {
    return description.find(unit) != std::string::npos;
  })) << description;
}

TEST(Platform, DigestOfProductsDependsNeitherOnThreadsNorOnTheCallersModes) {
  const uint64_t digest = matrix_product_digest();
  const int threads_before = at::get_num_threads();
  for (const int threads : {1, 2, 4}) {
    at::set_num_threads(threads);
    EXPECT_EQ(matrix_product_digest(), digest) << threads << " threads";
  }
  at::set_num_threads(threads_before);
  lockstep::testing::set_autocast(true);
  EXPECT_EQ(matrix_product_digest(), digest);
  lockstep::testing::set_autocast(false);
  {
    const c10::InferenceMode inference;
    EXPECT_EQ(matrix_product_digest(), digest);
  }
}

}  // namespace
}  // namespace lockstep::internal
