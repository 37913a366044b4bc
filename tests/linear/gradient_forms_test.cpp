// What describe() says of the gradients of large matrices, and which gradients stay factors.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/linear/own_strategies.h"
#include "tests/linear/some_numbers.h"
#include "tests/support/errors.h"
#include "tests/support/factored.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::FactoredGradientsAre;
using testing::lanes;
using testing::some;
using torch::Tensor;

TEST(FactoredGradientsSwitch, IsAnOptionAndAnEnvironmentVariable) {
  const auto described = [](const char* set, lockstep::FactoredGradients asked) {
    const FactoredGradientsAre scope(set);
    const MirroredStrategy strategy({.replicas = 2, .factored_gradients = asked});
    return strategy.describe();
  };
  using Asked = lockstep::FactoredGradients;
  EXPECT_TRUE(testing::has_value(described(nullptr, Asked::kAuto), "factored gradients: auto"));
  EXPECT_TRUE(testing::has_value(described("", Asked::kOff), "factored gradients: off"));
  EXPECT_TRUE(testing::has_value(described("off", Asked::kAuto), "factored gradients: off"));
  EXPECT_TRUE(testing::has_value(described("always", Asked::kAuto), "factored gradients: always"));
  EXPECT_TRUE(testing::has_value(described("always", Asked::kOff), "factored gradients: off"));
  expect_error<UsageError>([&] { described("on", Asked::kAuto); }, "LS-ENVIRONMENT",
                           {"LOCKSTEP_FACTORED_GRADIENTS", "'on'"});
}

TEST(FactoredGradientsSwitch, SaysOfLargeMatricesAloneWhyTheirGradientsAreWritten) {
  if (!testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor keeps no factors";
  MirroredStrategy strategy({.replicas = 2});
  const Variable small = strategy.make_variable(torch::zeros({8, 8}), {.name = "small"});
  const Variable vector = strategy.make_variable(torch::zeros({1 << 17}), {.name = "vector"});
  const Variable wide = strategy.make_variable(torch::zeros({512, 512}, torch::kDouble), {.name = "wide"});
  const Variable large = strategy.make_variable(torch::zeros({512, 512}), {.name = "large"});
  const Variable free = strategy.make_variable(torch::zeros({512, 512}), {.name = "free"});
  const Optimizer optimizer =
      strategy.make_optimizer(std::vector<Variable>{small, vector, wide, large}, torch::optim::SGDOptions(1));
  std::istringstream lines(strategy.describe());
  const std::vector<std::pair<std::string, std::string>> expected{
      {"small", ""}, {"vector", ""}, {"wide", ""}, {"large", "no matrix product so far"}, {"free", ""}};
  std::size_t found = 0;
  for (std::string line; std::getline(lines, line);) {
    for (const auto& [name, why] : expected) {
      if (line.rfind(name + " ", 0) != 0) continue;
      ++found;
      const std::size_t at = line.find("written: ");
      EXPECT_EQ(at == std::string::npos ? "" : line.substr(at + 9), why) << line;
    }
  }
  EXPECT_EQ(found, expected.size());
}

/// What describe() says of the gradient of `variable`; empty where it says nothing.
std::string form_of(const Strategy& strategy, const std::string& variable) {
  std::istringstream lines(strategy.describe_variables());
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(variable + " ", 0) != 0) continue;
    const std::size_t at = std::min(line.find("written: "), line.find("factors"));
    return at == std::string::npos ? "" : line.substr(at, line.find_last_not_of(' ') + 1 - at);
  }
  return "no such variable";
}

using Make = std::function<Tensor(const Tensor& weight)>;  // the loss

/// The same after one step.
std::string form_after(
    Strategy& strategy, const Make& make, at::IntArrayRef sizes = {512, 512},
    const std::function<void(Tensor&)>& before_step = [](Tensor&) {}) {
  const Variable weight = strategy.make_variable(some(sizes, 0), {.name = "w"});
  const Optimizer optimizer = strategy.make_optimizer(std::vector<Variable>{weight}, torch::optim::SGDOptions(0.1));
  strategy.run([&](ReplicaContext& ctx) {
    Tensor own = weight.value(ctx);
    make(own).pow(2).sum().backward();  // not a gradient that is one number, expanded
    before_step(own);
    optimizer.step(ctx);
  });
  return form_of(strategy, "w");
}

TEST(FactoredGradientsSwitch, SaysOfALargeMatrixWhatBecameOfItsLastGradient) {
  if (!testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor keeps no factors";
  const FactoredGradientsAre unset(nullptr);
  const auto linear = [](int64_t samples) {
    return [samples](const Tensor& w) { return some({samples, w.size(1)}, 1).mm(w.t()); };
  };
  const auto mirrored = [](lockstep::FactoredGradients asked = {}) {
    return std::make_unique<MirroredStrategy>(MirroredOptions{.replicas = 2, .factored_gradients = asked});
  };
  EXPECT_EQ(form_after(*mirrored(), linear(8)), "factors");
  EXPECT_EQ(form_after(*mirrored(), linear(64)), "factors");
  EXPECT_EQ(form_after(*mirrored(), linear(65)), "written: many samples");
  EXPECT_EQ(form_after(*mirrored(), linear(65), {2048, 2048}), "factors");
  EXPECT_EQ(form_after(*mirrored(lockstep::FactoredGradients::kOff), linear(8)), "written: factors are switched off");
  EXPECT_EQ(form_after(*mirrored(), linear(8), {8, (1 << 15) + 1}), "written: long rows");
  EXPECT_EQ(
      form_after(*mirrored(), linear(8), {512, 512}, [](Tensor& w) { EXPECT_GT(w.grad().norm().item<float>(), 0); }),
      "written: an operator read it");
  EXPECT_EQ(form_after(*mirrored(),
                       [](const Tensor& w) {
                         return w.mm(some({w.size(1), 8}, 1));
                       }),
            "written: not one product with the weight as second factor");
  EXPECT_EQ(form_after(*mirrored(), [](const Tensor& w) { return w.pow(2); }),
            "written: not one product with the weight as second factor");
  const auto topology = std::make_shared<HostTopology>(lanes(1), 2, /*pinned=*/false);
  testing::Custom reduced(
      {.name = "Reduced", .topology = topology, .reducer = std::make_shared<testing::OwnReducer>()});
  EXPECT_EQ(form_after(reduced, linear(8)), "written: the sum is made before the update");
  testing::Custom apart({.name = "Apart", .topology = topology, .synchronization = std::make_shared<testing::Apart>()});
  const auto model = apart.make_module([] { return torch::nn::Linear(512, 512); });  // parameters alone train apart
  const Optimizer optimizer = apart.make_optimizer(model, torch::optim::SGDOptions(0.1));
  EXPECT_EQ(form_of(apart, "model.weight"), "written: each replica trains its own");
}

TEST(FactoredGradientsSwitch, SaysOfAGradientThatIsComputedInAnotherWayThanBeforeThatItIs) {
  if (!testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor keeps no factors";
  const FactoredGradientsAre unset(nullptr);
  MirroredStrategy strategy({.replicas = 2});
  const Variable weight = strategy.make_variable(some({512, 512}, 0), {.name = "w"});
  const Optimizer optimizer = strategy.make_optimizer(std::vector<Variable>{weight}, torch::optim::SGDOptions(0.1));
  for (const bool is_product : {true, false, true}) {
    strategy.run([&](ReplicaContext& ctx) {
      const Tensor w = weight.value(ctx);
      (is_product ? some({8, 512}, 1).mm(w.t()) : w).pow(2).sum().backward();
      optimizer.step(ctx);
    });
    EXPECT_EQ(form_of(strategy, "w"),
              is_product ? "factors" : "written: not one product with the weight as second factor");
  }
}

TEST(FactoredGradientsSwitch, IsAnOptionOfEveryStrategy) {
  const FactoredGradientsAre unset(nullptr);
  for (const char* const name : {"one-device", "mirrored", "central-storage", "multi-worker"}) {
    const auto off = make_strategy(name, {.factored_gradients = lockstep::FactoredGradients::kOff});
    EXPECT_TRUE(testing::has_value(off->describe(), "factored gradients: off")) << name << ": " << off->describe();
    EXPECT_TRUE(testing::has_value(make_strategy(name)->describe(), "factored gradients: auto")) << name;
  }
}

/// Which of LibTorch's products have gradients that stay factors.
TEST(FactoredGradientsOf, EachProductOfALayerStayFactors) {
  if (!testing::can_factor()) GTEST_SKIP() << "this LibTorch or processor keeps no factors";
  const FactoredGradientsAre unset(nullptr);
  const Tensor x = some({8, 512}, 1);
  const Tensor bias = some({512}, 2);
  const std::vector<std::pair<const char*, Make>> products{
      {"linear", [&](const Tensor& w) { return torch::linear(x, w); }},
      {"linear with bias", [&](const Tensor& w) { return torch::linear(x, w, bias); }},
      {"linear of three dimensions",
       [&](const Tensor& w) {
         return torch::linear(x.view({2, 4, 512}), w, bias);
       }},
      {"mm of the transposed weight", [&](const Tensor& w) { return x.mm(w.t()); }},
      {"mm", [&](const Tensor& w) { return x.mm(w); }},
      {"addmm", [&](const Tensor& w) { return torch::addmm(bias, x, w); }},
      {"matmul", [&](const Tensor& w) { return torch::matmul(x, w.t()); }},
      {"matmul of three dimensions",
       [&](const Tensor& w) {
         return torch::matmul(x.view({2, 4, 512}), w.t());
       }},
  };
  for (const auto& [name, make] : products) {
    MirroredStrategy strategy({.replicas = 2});
    const auto expect_no_memory = [name = name](Tensor& w) { EXPECT_FALSE(w.grad().has_storage()) << name; };
    EXPECT_EQ(form_after(strategy, make, {512, 512}, expect_no_memory), "factors") << name;
  }
}

}  // namespace
}  // namespace lockstep
