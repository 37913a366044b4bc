// What factories of modules and initial values do to the program around them.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <string>

#include "tests/support/programs.h"

namespace lockstep {
namespace {

TEST(FactoriesThatSeed, LeaveTheCallersGeneratorAsItWas) {
  MirroredStrategy strategy({.devices = testing::lanes(2)});
  const auto next_numbers = [&](const std::function<void()>& between) {
    torch::manual_seed(7);
    torch::rand({3});
    between();
    return torch::rand({4});
  };
  const torch::Tensor expected = next_numbers([] {});
  for (const uint64_t seed : {7, 123}) {  // that of the caller, and another one
    const auto seeded = [seed] {
      torch::manual_seed(seed);
      return torch::nn::Linear(2, 2);
    };
    const std::string name = std::to_string(seed);
    const auto make_module = [&] {
      const auto model = strategy.make_module(seeded, {.name = "module" + name});
      (void)model.export_module();
    };
    EXPECT_TRUE(torch::equal(next_numbers(make_module), expected)) << seed;
    const auto make_variable = [&] {
      strategy.make_variable([&] { return seeded()->weight.detach(); }, {.name = "variable" + name});
    };
    EXPECT_TRUE(torch::equal(next_numbers(make_variable), expected)) << seed;
  }
}

}  // namespace
}  // namespace lockstep
