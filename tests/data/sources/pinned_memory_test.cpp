// Batches in memory that is pinned for a GPU. Most of it needs a GPU and LibTorch's CUDA library, which is not linked:
// on a machine with a GPU, run with LD_PRELOAD=libtorch_cuda.so.
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "tests/data/dealt_numbers.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;
using testing::numbers;
using testing::Numbers;

TEST(PinnedMemory, WithoutAGpuIsRefused) {
  if (at::globalContext().hasCUDA()) GTEST_SKIP() << "LibTorch sees a GPU here";
  MirroredStrategy strategy({.devices = lanes(1)});
  expect_error<UsageError>([&] { strategy.distribute(numbers(4), {.global_batch = 2, .pin_memory = true}); },
                           "LS-PIN-MEMORY", {".pin_memory", "no GPU", "libtorch_cuda"});
}

class PinnedMemoryOnAGpu : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    if (!at::globalContext().hasCUDA()) GTEST_SKIP() << "LibTorch sees no GPU here: it needs one, and libtorch_cuda";
  }
};

TEST_P(PinnedMemoryOnAGpu, HoldsEachBatchWithTheSameBits) {
  MirroredStrategy strategy({.devices = lanes(2), .replicas = 3});
  const Dataset named = numbers(10).map([](Batch sample) {
    sample.more["twice"] = sample.input * 2;
    return sample;
  });
  const auto check = [&](const auto& source) {
    const auto plain = strategy.distribute(source, {.global_batch = 4, .shuffle = true, .prefetch = GetParam()});
    const auto pinned =
        strategy.distribute(source, {.global_batch = 4, .shuffle = true, .prefetch = GetParam(), .pin_memory = true});
    auto expected = plain.epoch(0).begin();
    int64_t steps = 0;
    for (const auto& step : pinned.epoch(0)) {
      auto same = expected->begin();
      for (const Batch& part : step) {
        if (part.size() > 0) {
          EXPECT_TRUE(part.input.is_pinned());
          EXPECT_TRUE(part.target.is_pinned());
          EXPECT_TRUE(part.ids.is_pinned());
          EXPECT_TRUE(part.more.at("twice").is_pinned());
          const torch::Tensor there = part.input.to(at::kCUDA, /*non_blocking=*/true);
          EXPECT_TRUE(torch::equal(there.cpu(), same->input));
        }
        EXPECT_TRUE(torch::equal(part.input, same->input));
        EXPECT_TRUE(torch::equal(part.target, same->target));
        EXPECT_TRUE(torch::equal(part.ids, same->ids));
        ++same;
      }
      ++expected;
      ++steps;
    }
    EXPECT_EQ(steps, 3);
    EXPECT_NE(pinned.describe().find("pinned memory"), std::string::npos);
    EXPECT_EQ(plain.describe().find("pinned memory"), std::string::npos);
  };
  check(named);
  check(data::from_dataset(named));
}

INSTANTIATE_TEST_SUITE_P(StepsAhead, PinnedMemoryOnAGpu, ::testing::Values(0, 2));

}  // namespace
}  // namespace lockstep
