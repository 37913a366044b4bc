// torch::manual_seed in a step is a finding, also with the seed that the generator has, and draws stay as they are.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <string>

#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::lanes;
using torch::Tensor;

class SeedInStep : public ::testing::TestWithParam<int> {
 protected:
  int64_t counted(const std::function<void(ReplicaContext&)>& step, int times) {
    MirroredStrategy strategy({.devices = lanes(GetParam()), .replicas = 2, .seed = 1});
    for (int i = 0; i < times; ++i) strategy.run(step);
    const auto found = strategy.findings();
    if (found.empty()) return 0;
    EXPECT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].code, "LS-SEED-IN-STEP");
    return found[0].count;
  }
};

TEST_P(SeedInStep, IsFoundWhateverTheSeedIs) {
  const auto seeds = [](ReplicaContext&) { torch::manual_seed(5); };
  torch::manual_seed(1);
  EXPECT_EQ(counted(seeds, 3), 3);
  torch::manual_seed(5);  // nothing was drawn since
  EXPECT_EQ(counted(seeds, 2), 2);
  torch::manual_seed(5);
  torch::rand({3});
  EXPECT_EQ(counted(seeds, 1), 1);
}

TEST_P(SeedInStep, IsNotFoundWhereAStepDrawsOrHasAGeneratorOfItsOwn) {
  for (const bool draws_before : {false, true}) {
    torch::manual_seed(5);
    if (draws_before) torch::rand({3});
    EXPECT_EQ(counted(
                  [](ReplicaContext& ctx) {
                    torch::rand({700});
                    torch::rand({3}, ctx.random());
                    torch::rand({3}, at::make_generator<at::CPUGeneratorImpl>(5));
                  },
                  20),
              0);
  }
}

TEST_P(SeedInStep, ThatDoesNotHappenLeavesWhatTheDefaultGeneratorDraws) {
  for (const int64_t before : {0, 1, 623, 624, 625}) {
    torch::manual_seed(5);
    if (before > 0) torch::rand({before});
    const Tensor expected = torch::cat({torch::rand({700}), torch::randn({20})});
    torch::manual_seed(5);
    if (before > 0) torch::rand({before});
    EXPECT_EQ(counted([](ReplicaContext&) { torch::rand({3}); }, 2), 0);
    EXPECT_TRUE(torch::equal(torch::cat({torch::rand({700}), torch::randn({20})}), expected)) << before;
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, SeedInStep, ::testing::Values(1, 2),
                         [](const auto& one) { return "On" + std::to_string(one.param); });

}  // namespace
}  // namespace lockstep
