// Layers, tensors and memory that modules share: refused between replicas, and between two modules of one strategy.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <array>

#include "lockstep/variable/variable_state.h"
#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;
using torch::Tensor;

using Part = torch::nn::Module;
using Parts = std::vector<std::shared_ptr<Part>>;

/// A module that contains `layer` as "l".
std::shared_ptr<Part> model_of(const std::shared_ptr<Part>& layer) {
  auto module = std::make_shared<Part>();
  module->register_module("l", layer);
  return module;
}

std::shared_ptr<Part> with_parameter(const Tensor& tensor) {
  auto module = std::make_shared<Part>();
  module->register_parameter("weight", tensor);
  return module;
}

std::shared_ptr<Part> with_buffer(const Tensor& tensor) {
  auto module = std::make_shared<Part>();
  module->register_buffer("weight", tensor);
  return module;
}

class SharedLayers : public ::testing::TestWithParam<Copies> {
 protected:
  /// One layer for each replica.
  static Parts layers(const std::function<std::shared_ptr<Part>()>& make) { return {make(), make()}; }
  /// A model from the layers of all replicas, in order.
  Replicated<std::shared_ptr<Part>> make(const Parts& parts, const std::string& name) {
    std::size_t next = 0;
    return strategy_.make_module([&] { return model_of(parts[next++]); }, {.name = name});
  }
  void refused(const Parts& parts, std::initializer_list<std::string_view> values) {
    const std::size_t before = strategy_.variables().size();
    expect_error<UsageError>([&] { make(parts, "b"); }, "LS-FACTORY", values);
    EXPECT_EQ(strategy_.variables().size(), before);
  }

  MirroredStrategy strategy_{{.devices = lanes(2), .replicas = 2, .copies = GetParam(), .verify_every = 1}};
};

TEST_P(SharedLayers, AModuleOfAnotherModelIsRefusedAndThatModelGoesOn) {
  const Parts parts = layers([] {
    auto layer = torch::nn::Linear(2, 2).ptr();
    const torch::NoGradGuard no_grad;
    for (Tensor& one : layer->parameters()) one.fill_(0.5);
    return layer;
  });
  const auto a = make(parts, "a");
  refused(parts, {"variable 'b.l.weight'", "variable 'a.l.weight'", "replica 0"});
  const auto optimizer = strategy_.make_optimizer(a, torch::optim::SGDOptions(1));
  const auto before = a.state();
  strategy_.run([&](ReplicaContext& ctx) {
    (a(ctx)->parameters()[0].sum() / 2).backward();
    optimizer.step(ctx);
  });
  EXPECT_TRUE(torch::allclose(a.state().at("l.weight"), before.at("l.weight") - 1));
}

TEST_P(SharedLayers, ATensorOfAnotherModelIsRefused) {
  for (const bool buffer : {false, true}) {
    for (const int64_t size : {3, 0}) {
      std::vector<Tensor> shared{torch::ones({size}), torch::ones({size})};
      const auto fresh = [&] {
        Parts parts;
        for (const Tensor& one : shared) parts.push_back(buffer ? with_buffer(one) : with_parameter(one));
        return parts;
      };
      const auto a = make(fresh(), "a");
      refused(fresh(), {"variable 'b.l.weight'", "variable 'a.l.weight'", "replica 0"});
    }
  }
}

TEST_P(SharedLayers, AViewOfAnotherModelsMemoryIsRefused) {
  const Parts parts = layers([] { return with_buffer(torch::ones({6})); });
  const auto a = make(parts, "a");
  const auto blob_of = [](const Tensor& one) { return torch::from_blob(one.data_ptr<float>() + 2, {3}); };
  // Only replica 1's tensor lies there.
  refused({with_buffer(torch::ones({3})), with_buffer(blob_of(parts[1]->named_buffers()["weight"]))},
          {"variable 'b.l.weight'", "variable 'a.l.weight'", "replica 1"});
}

TEST_P(SharedLayers, TheMemoryOfAVariableIsRefused) {
  const Variable v = strategy_.make_variable(torch::ones({3}), {.name = "v"});
  refused({with_parameter(v.state().component(0).detach()), with_parameter(torch::ones({3}))},
          {"variable 'b.l.weight'", "variable 'v'", "replica 0"});
}

TEST_P(SharedLayers, ThoseOfAModelThatIsGoneAreTakenAgain) {
  const Parts parts = layers([] { return with_buffer(torch::ones({2})); });
  { const auto a = make(parts, "a"); }
  const auto b = make(parts, "b");
  EXPECT_EQ(b.variables().size(), 1u);
}

TEST_P(SharedLayers, ModelsThatLieSideBySideAreTaken) {
  std::array<float, 12> memory{};
  const auto piece = [&](int64_t i) { return with_buffer(torch::from_blob(memory.data() + 3 * i, {3})); };
  const auto a = make({piece(0), piece(2)}, "a");
  const auto b = make({piece(1), piece(3)}, "b");
  b.load({{"l.weight", torch::ones({3})}});
  EXPECT_TRUE(torch::equal(a.state().at("l.weight"), torch::zeros({3})));
}

TEST_P(SharedLayers, ReplicasThatLieInOneMemoryUnderTwoStoragesAreRefused) {
  static std::array<float, 6> memory{};
  const auto piece = [&](int64_t begin) { return torch::from_blob(memory.data() + begin, {4}); };
  for (const auto& with : {with_buffer, with_parameter}) {
    for (const int64_t begin : {0, 2}) {
      const std::initializer_list<std::string_view> values = {"replicas 0 and 1", "tensor l.weight", "'b'"};
      refused({with(piece(0)), with(piece(begin))}, values);
      refused({with(piece(begin)), with(piece(0))}, values);
    }
  }
}

TEST_P(SharedLayers, AParameterInTheMemoryOfAnotherTensorUnderTwoStoragesIsRefused) {
  std::array<float, 16> memory{};
  const auto module_at = [&](float* begin) {
    const auto module = with_parameter(torch::from_blob(begin, {4}));
    module->register_buffer("mask", torch::from_blob(begin + 3, {4}));
    return module;
  };
  expect_error<UsageError>(
      [&] {
        make({module_at(memory.data()), module_at(memory.data() + 8)}, "b");
      },
      "LS-SHARED-MEMORY", {"'b.l.weight'", "'b.l.mask'"});
}

INSTANTIATE_TEST_SUITE_P(Copies, SharedLayers, ::testing::Values(Copies::kPerMemory, Copies::kPerReplica),
                         [](const auto& test) { return test.param == Copies::kPerReplica ? "each" : "one"; });

}  // namespace
}  // namespace lockstep
