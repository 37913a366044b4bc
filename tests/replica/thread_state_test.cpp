// What a step finds on its thread, and what is left on the caller's.
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <thread>

#include "lockstep/core/torch_compat.h"
#include "lockstep/replica/pool/lanes.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::lanes;

MirroredOptions shape(int64_t replicas, int num_lanes) { return {.devices = lanes(num_lanes), .replicas = replicas}; }

class ThreadStateOf : public ::testing::TestWithParam<std::pair<int64_t, int>> {
 protected:
  MirroredStrategy strategy_{shape(GetParam().first, GetParam().second)};
  /// What each replica sees.
  template <class Fn>
  auto seen(Fn fn) {
    return strategy_.local_results(strategy_.run([&](ReplicaContext&) { return fn(); }));
  }
};

TEST_P(ThreadStateOf, GradModeIsTheCallers) {
  const auto all = [&](bool expected) {
    for (const bool mode : seen([] { return torch::GradMode::is_enabled(); })) EXPECT_EQ(mode, expected);
  };
  all(true);
  {
    const torch::NoGradGuard no_grad;
    all(false);
  }
  all(true);
  {
    const torch::NoGradGuard no_grad;
    const torch::AutoGradMode again(true);
    all(true);
  }
}

TEST_P(ThreadStateOf, InferenceModeIsTheCallers) {
  const c10::InferenceMode inference;
  for (const bool mode : seen([] { return c10::InferenceMode::is_enabled(); })) EXPECT_TRUE(mode);
}

TEST_P(ThreadStateOf, AutocastIsTheCallers) {
  const auto product = [] { return torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type(); };
  internal::ThreadModes modes = internal::thread_modes();
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
#else
  at::autocast::set_cpu_enabled(true);
  at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
#endif
  for (const auto type : seen(product)) EXPECT_EQ(type, torch::kBFloat16);
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
  at::autocast::set_autocast_enabled(at::kCPU, false);
#else
  at::autocast::set_cpu_enabled(false);
#endif
  internal::set_autocast_details(modes);
  for (const auto type : seen(product)) EXPECT_EQ(type, torch::kFloat);
}

TEST_P(ThreadStateOf, WhatAStepLeavesBehindReachesNeitherTheNextStepNorTheCaller) {
  strategy_.run([&](ReplicaContext&) {
    torch::GradMode::set_enabled(false);
    at::set_num_threads(3);
  });
  EXPECT_TRUE(torch::GradMode::is_enabled());
  for (const bool mode : seen([] { return torch::GradMode::is_enabled(); })) EXPECT_TRUE(mode);
  for (const int threads : seen([] { return at::get_num_threads(); })) EXPECT_EQ(threads, 1);
}

TEST_P(ThreadStateOf, IntraOpThreadsAreTheReplicasAndTheCallersComeBack) {
  for (const int callers : {1, 2, 5}) {
    at::set_num_threads(callers);
    for (const int threads : seen([] { return at::get_num_threads(); })) EXPECT_EQ(threads, 1);
    EXPECT_EQ(at::get_num_threads(), callers);
  }
  at::set_num_threads(1);
}

bool flushes_denormals() {
  volatile float tiny = 1e-38f;
  return tiny * 0.1f == 0.0f;
}

TEST_P(ThreadStateOf, DenormalsAreFlushedOrKeptOnAllReplicasWhateverTheCallerDoes) {
  const auto [replicas, devices] = GetParam();
  MirroredStrategy keeping({.devices = lanes(devices), .replicas = replicas, .denormals = Denormals::kKeep});
  for (const bool callers : {true, false}) {
    if (!at::globalContext().setFlushDenormal(callers)) GTEST_SKIP() << "this processor cannot flush denormals";
    for (const bool flushed : seen(flushes_denormals)) EXPECT_TRUE(flushed);
    EXPECT_EQ(flushes_denormals(), callers);
    keeping.run(
        [](ReplicaContext& ctx) { EXPECT_FALSE(flushes_denormals()) << "replica " << ctx.replica_id().value(); });
    EXPECT_EQ(flushes_denormals(), callers);
  }
}

TEST_P(ThreadStateOf, DenormalsAreTreatedAlikeByAddingInAStepOrOutsideOfIt) {
  if (!at::globalContext().setFlushDenormal(false)) GTEST_SKIP() << "this processor cannot flush denormals";
  const auto tiny = strategy_.per_replica([](ReplicaId) { return torch::full({3}, 1e-40); });
  const auto inside = strategy_.run(
      tiny, [](ReplicaContext& ctx, const torch::Tensor& value) { return ctx.all_reduce(Reduction::kMean, value); });
  EXPECT_EQ(inside.begin()->sum().item<float>(), 0.0f);
  EXPECT_EQ(strategy_.reduce(Reduction::kMean, tiny).sum().item<float>(), 0.0f);
}

TEST_P(ThreadStateOf, TheCallersAffinityComesBack) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  for (int run = 0; run < 3; ++run) {
    strategy_.run([](ReplicaContext&) {});
    cpu_set_t after;
    ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    EXPECT_TRUE(CPU_EQUAL(&before, &after));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ThreadStateOf,
                         ::testing::Values(std::pair<int64_t, int>{1, 1}, std::pair<int64_t, int>{2, 2},
                                           std::pair<int64_t, int>{4, 2}, std::pair<int64_t, int>{4, 1}),
                         [](const auto& shape) {
                           return "V" + std::to_string(shape.param.first) + "D" + std::to_string(shape.param.second);
                         });

TEST(Lanes, ArePinnedToCoresOfTheirOwnWhereTheyFit) {
  const auto cores = internal::cores_of_this_process();
  if (cores.size() < 2) GTEST_SKIP() << "one core: nothing to tell apart";
  MirroredStrategy strategy({.devices = lanes(2), .replicas = 4});
  const auto masks = strategy.local_results(strategy.run([](ReplicaContext&) {
    cpu_set_t mask;
    sched_getaffinity(0, sizeof mask, &mask);
    return mask;
  }));
  for (std::size_t r = 0; r < masks.size(); ++r) {
    EXPECT_EQ(CPU_COUNT(&masks[r]), 1) << "replica " << r;
    EXPECT_TRUE(CPU_ISSET(cores[r / 2], &masks[r])) << "replica " << r;
  }
}

TEST(Lanes, AreLegalInAnyNumberAndThenNotPinned) {
  const int many = static_cast<int>(internal::cores_of_this_process().size()) + 3;
  MirroredStrategy strategy({.devices = lanes(many)});
  EXPECT_NE(strategy.describe().find("not pinned"), std::string::npos);
  EXPECT_EQ(strategy.run([](ReplicaContext&) { return 1; }).size(), static_cast<std::size_t>(many));
}

TEST(ThreadsPerReplica, IsWhatWasAskedFor) {
  MirroredStrategy strategy({.devices = lanes(2), .threads_per_replica = 3});
  for (const int threads : strategy.run([](ReplicaContext&) { return at::get_num_threads(); })) EXPECT_EQ(threads, 3);
}

}  // namespace
}  // namespace lockstep
