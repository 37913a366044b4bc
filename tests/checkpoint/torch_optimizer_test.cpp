// The state of LibTorch's own optimizers goes on in the library's.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace lockstep {
namespace {

using testing::expect_error;

at::Tensor input() { return torch::arange(12).to(torch::kFloat).view({4, 3}) / 12; }

class TorchOptimizer : public testing::ScratchFolder {
 protected:
  /// Trains `steps` with LibTorch's optimizer, saves its state, and goes on with it and with the library's: the weights
  /// stay equal.
  template <class Native, class Options>
  void expect_goes_on(const Options& options) {
    torch::nn::Linear native(3, 2);
    Native native_optimizer(native->parameters(), options);
    const auto native_step = [&] {
      native_optimizer.zero_grad();
      native->forward(input()).square().mean().backward();
      native_optimizer.step();
    };
    for (int i = 0; i < 3; ++i) native_step();
    torch::save(native_optimizer, path("optimizer.pt"));
    MirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = 1, .seed = 1});
    const auto model = strategy.make_module([] { return torch::nn::Linear(3, 2); });
    const auto optimizer = strategy.make_optimizer(model, options);
    model.load({{"weight", native->weight.detach()}, {"bias", native->bias.detach()}});
    optimizer.load(load_optimizer_state(path("optimizer.pt"), optimizer));
    for (int i = 0; i < 3; ++i) {
      native_step();
      strategy.run([&](ReplicaContext& ctx) {
        model(ctx)->forward(input()).square().mean().backward();
        optimizer.step(ctx, {.loss_scaled_by_hand = true});
      });
    }
    const auto state = model.state();
    EXPECT_TRUE(torch::allclose(state.at("weight"), native->weight.detach(), 1e-6, 1e-7));
    EXPECT_TRUE(torch::allclose(state.at("bias"), native->bias.detach(), 1e-6, 1e-7));
  }
};

TEST_F(TorchOptimizer, OfEveryRuleGoesOn) {
  expect_goes_on<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
  expect_goes_on<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.5));
  expect_goes_on<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
  expect_goes_on<torch::optim::Adam>(torch::optim::AdamOptions(0.1));
  expect_goes_on<torch::optim::Adam>(torch::optim::AdamOptions(0.1).amsgrad(true));
  expect_goes_on<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1));
  expect_goes_on<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01));
  expect_goes_on<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01).centered(true).momentum(0.9));
  expect_goes_on<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1).initial_accumulator_value(0.5).lr_decay(0.1));
}

TEST_F(TorchOptimizer, OfAnotherFormIsRefused) {
  torch::nn::Linear native(3, 2);
  torch::optim::Adam adam(native->parameters(), torch::optim::AdamOptions(0.25));
  torch::save(adam, path("fresh.pt"));
  native->forward(input()).sum().backward();
  adam.step();
  torch::save(adam, path("adam.pt"));
  MirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = 1, .seed = 1});
  const auto model = strategy.make_module([] { return torch::nn::Linear(3, 2); });
  const auto refused = [&](const Optimizer& optimizer, const std::string& part) {
    expect_error<UsageError>([&] { load_optimizer_state(path("adam.pt"), optimizer); }, "LS-STATE-MISFIT", {part});
  };
  refused(strategy.make_optimizer(model, torch::optim::SGDOptions(0.1)), "'exp_avg'");
  refused(strategy.make_optimizer(model, torch::optim::AdamOptions(0.1).amsgrad(true)), "'max_exp_avg_sq'");
  refused(strategy.make_optimizer(std::vector<Variable>{model.variables()[0]}, torch::optim::AdamOptions(0.1)),
          "2 parameters");
  const auto fitting = strategy.make_optimizer(model, torch::optim::AdamOptions(0.1));
  fitting.load(load_optimizer_state(path("fresh.pt"), fitting));
  EXPECT_EQ(fitting.learning_rate(), 0.25);
  EXPECT_EQ(fitting.state().at("model.weight/step").item<int64_t>(), 0);
  torch::save(native, path("module.pt"));
  expect_error<DataError>([&] { load_optimizer_state(path("module.pt"), fitting); }, "LS-CHECKPOINT-DAMAGED",
                          {"no state of an optimizer"});
}

}  // namespace
}  // namespace lockstep
