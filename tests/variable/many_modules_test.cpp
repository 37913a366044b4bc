// The memory that modules of many replicas take while they are made.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::expect_error;
using testing::lanes;
using torch::Tensor;

/// Four replicas on two lanes, whose modules are made one after another.
class ManyModules : public ::testing::Test {
 protected:
  MirroredStrategy strategy_{{.devices = lanes(2), .replicas = 4, .seed = 5}};
};

/// How many of the parameters that the factory has made so far have memory of their own.
int64_t in_memory(const std::vector<Tensor>& made) {
  std::set<const void*> storages;
  for (const Tensor& one : made) storages.insert(one.storage().unsafeGetStorageImpl());
  return static_cast<int64_t>(storages.size());
}

TEST_F(ManyModules, NeverHaveMoreThanTwoModulesParametersInMemory) {
  std::vector<Tensor> made;  // with the parameters' own handles: their memory may be exchanged
  std::vector<int64_t> before;
  const auto model = strategy_.make_module([&] {
    before.push_back(in_memory(made));
    torch::nn::Linear linear(torch::nn::LinearOptions(64, 64).bias(false));
    made.push_back(linear->weight);
    return linear;
  });
  EXPECT_EQ(before, (std::vector<int64_t>{0, 1, 1, 1}));
  EXPECT_EQ(in_memory(made), 1);
  auto optimizer = strategy_.make_optimizer(model, torch::optim::SGDOptions(1));
  const Tensor first = model.variables()[0].read();
  strategy_.run([&](ReplicaContext& ctx) {
    model(ctx)->weight.sum().backward();
    optimizer.step(ctx);
  });
  EXPECT_TRUE(torch::allclose(model.variables()[0].read(), first - 4));
}

TEST_F(ManyModules, KeepBuffersAndCopiesThatWereAskedForApart) {
  MirroredStrategy copies({.devices = lanes(2), .replicas = 3, .copies = Copies::kPerReplica, .seed = 5});
  const auto factory = [] { return torch::nn::BatchNorm1d(4); };
  for (MirroredStrategy* const strategy : {&strategy_, &copies}) {
    const auto model = strategy->make_module(factory);
    std::set<const void*> weights;
    std::set<const void*> means;
    for (const auto& [weight, mean] : strategy->run([&](ReplicaContext& ctx) {
           return std::pair<const void*, const void*>(model(ctx)->weight.data_ptr(),
                                                      model(ctx)->running_mean.data_ptr());
         })) {
      weights.insert(weight);
      means.insert(mean);
    }
    EXPECT_EQ(weights.size(), strategy == &copies ? 3U : 1U);
    EXPECT_EQ(means.size(), static_cast<std::size_t>(strategy->num_replicas()));
  }
}

TEST_F(ManyModules, MayReuseTheMemoryOfATensorThatHadTwoNames) {
  MirroredStrategy strategy({.devices = lanes(1), .replicas = 12, .seed = 5});
  const auto model = strategy.make_module([] {
    const auto module = std::make_shared<torch::nn::Module>();
    const Tensor weight = module->register_parameter("weight", torch::ones({64, 64}));
    module->register_parameter("tied", weight);
    return module;
  });
  EXPECT_EQ(model.variables().size(), 1U);
}

TEST_F(ManyModules, MustNotShareATensorFromAnyReplicaOn) {
  for (const bool same_tensor : {true, false}) {
    std::vector<float> memory(16, 1.0f);
    Tensor shared;
    int64_t calls = 0;
    const auto factory = [&] {
      Tensor weight = torch::ones({4, 4});
      if (++calls > 1 && !same_tensor) weight = torch::from_blob(memory.data(), {4, 4});
      if (calls == 2) shared = weight;
      if (calls > 2 && same_tensor) weight = shared;
      const auto module = std::make_shared<torch::nn::Module>();
      module->register_parameter("weight", weight);
      return module;
    };
    expect_error<UsageError>([&] { strategy_.make_module(factory); }, "LS-FACTORY",
                             {"replicas 1 and 2", "weight", "module 'model'"});
  }
}

TEST_F(ManyModules, MustHaveTheSameInitialValuesOnEveryReplica) {
  int64_t calls = 0;
  const auto factory = [&] {
    torch::nn::Linear linear(4, 4);
    if (++calls == 4) linear->weight.data()[3][3] += 1;
    return linear;
  };
  expect_error<DivergenceError>([&] { strategy_.make_module(factory); }, "LS-DIVERGED",
                                {"'model.weight'", "replica 3", "replica 0"});
}

/// Keeps a view of its weight, which must go on to show the weight.
struct KeepsAView : torch::nn::Module {
  explicit KeepsAView(bool keeps) : weight(register_parameter("weight", torch::ones({3, 3}))) {
    if (keeps) view = weight.data().t();
  }
  Tensor weight;
  Tensor view;
};

TEST_F(ManyModules, KeepTheMemoryThatAViewShowsWhicheverReplicaHasTheView) {
  for (const int64_t with_view : {0, 1, 3}) {
    int64_t calls = 0;
    const auto model = strategy_.make_module([&] { return std::make_shared<KeepsAView>(calls++ == with_view); },
                                             {.name = "m" + std::to_string(with_view)});
    model.variables()[0].assign(torch::full({3, 3}, 7.0f));
    const auto values = strategy_.run([&](ReplicaContext& ctx) {
      const Tensor sevens = torch::full({3, 3}, 7.0f);
      const bool shows = !model(ctx)->view.defined() || torch::equal(model(ctx)->view, sevens);
      return shows && torch::equal(model(ctx)->weight, sevens);
    });
    for (const bool all_show_it : values) EXPECT_TRUE(all_show_it) << "view on replica " << with_view;
  }
}

}  // namespace
}  // namespace lockstep
