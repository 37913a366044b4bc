// What factories of modules and initial values must return, and what they do to the program around them.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <string>

#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;
using testing::make_program;
using testing::Program;
using torch::Tensor;

class Factories : public ::testing::Test {
 protected:
  MirroredStrategy strategy_{{.devices = lanes(1), .replicas = 3}};
  int calls_ = 0;
};

TEST_F(Factories, MustNotReturnTheSameModuleTwice) {
  const auto one = make_program("mlp");
  expect_error<UsageError>([&] { strategy_.make_module([&] { return one; }); }, "LS-FACTORY",
                           {"replicas 0 and 1", "a module", "module 'model'"});
}

TEST_F(Factories, MustNotShareATensor) {
  const Tensor shared = torch::ones({2});
  const auto make = [&] {
    auto module = std::make_shared<torch::nn::Module>();
    module->register_parameter("shared", shared);
    return module;
  };
  expect_error<UsageError>([&] { strategy_.make_module(make); }, "LS-FACTORY",
                           {"replicas 0 and 1", "tensor shared", "module 'model'"});
}

TEST_F(Factories, MustMakeTheSameNamesShapesAndDtypes) {
  expect_error<UsageError>(
      [&] { strategy_.make_module([&] { return torch::nn::Linear(2, ++calls_ == 3 ? 5 : 4); }); }, "LS-FACTORY",
      {"module 'model'", "replica 0", "parameter weight Float [4, 2]", "replica 2", "parameter weight Float [5, 2]"});
  expect_error<UsageError>(
      [&] { strategy_.make_module([&] { return make_program(++calls_ % 2 == 0 ? "mlp" : "cnn"); }, {.name = "b"}); },
      "LS-FACTORY", {"module 'b'", "replica 0", "replica 1"});
  const auto of_two_dtypes = [&] {
    torch::nn::Linear linear(2, 2);
    if (++calls_ % 2 == 0) linear->to(torch::kDouble);
    return linear;
  };
  expect_error<UsageError>([&] { strategy_.make_module(of_two_dtypes, {.name = "c"}); }, "LS-FACTORY",
                           {"module 'c'", "replica 0", "replica 1", "Float [2, 2]", "Double [2, 2]"});
}

TEST_F(Factories, MustMakeTheSameInitialValues) {
  const auto make = [&] {
    torch::nn::Linear linear(2, 2);
    const torch::NoGradGuard no_grad;
    linear->bias.fill_(++calls_);
    return linear;
  };
  expect_error<DivergenceError>([&] { strategy_.make_module(make); }, "LS-DIVERGED",
                                {"variable 'model.bias'", "replica 1", "replica 0"});
}

TEST_F(Factories, MustReturnSomething) {
  expect_error<UsageError>([&] { strategy_.make_module([] { return std::shared_ptr<Program>(); }); }, "LS-FACTORY",
                           {"module 'model'", "replica 0"});
  expect_error<UsageError>([&] { strategy_.make_module([] { return torch::nn::Linear(nullptr); }, {.name = "b"}); },
                           "LS-FACTORY", {"module 'b'", "replica 0"});
}

TEST_F(Factories, MayReturnHoldersSharedPointersAndSequentials) {
  const auto linear = strategy_.make_module([] { return torch::nn::Linear(2, 3); }, {.name = "a"});
  const auto sequence = strategy_.make_module(
      [] { return torch::nn::Sequential(torch::nn::Linear(2, 3), torch::nn::ReLU()); }, {.name = "b"});
  const auto pointer =
      strategy_.make_module([] { return std::make_shared<torch::nn::LinearImpl>(2, 3); }, {.name = "c"});
  strategy_.run([&](ReplicaContext& ctx) {
    EXPECT_EQ(linear(ctx)->forward(torch::ones({1, 2})).size(1), 3);
    EXPECT_EQ(sequence(ctx)->forward(torch::ones({1, 2})).size(1), 3);
    EXPECT_EQ(pointer(ctx)->forward(torch::ones({1, 2})).size(1), 3);
  });
}

TEST_F(Factories, FrozenParametersAreVariablesThatAreNotTrainable) {
  const auto model = strategy_.make_module([] {
    torch::nn::Linear linear(2, 2);
    linear->weight.set_requires_grad(false);
    return linear;
  });
  EXPECT_FALSE(model.variables()[0].trainable());
  EXPECT_TRUE(model.variables()[1].trainable());
}

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
