// Trains under RoundRobinStrategy and under MirroredStrategy: variables lie on other devices and have the same bits.
#include "round_robin.h"

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

using torch::Tensor;

class Net : public torch::nn::Module {
 public:
  Net()
      : hidden_(register_module("hidden", torch::nn::Linear(8, 16))),
        out_(register_module("out", torch::nn::Linear(16, 1))) {}
  Tensor forward(const Tensor& input) { return out_->forward(torch::relu(hidden_->forward(input))); }

 private:
  torch::nn::Linear hidden_;
  torch::nn::Linear out_;
};

// Trains for some steps, shows where variables are, and gives the values that the model has in the end.
std::map<std::string, Tensor> train(lockstep::Strategy& strategy) {
  const auto model = strategy.make_module([] { return std::make_shared<Net>(); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.01).momentum(0.9));
  const Tensor input = torch::arange(32 * 8).remainder(11).to(torch::kFloat).view({32, 8}) / 11;
  const auto data = strategy.distribute(lockstep::data::from_tensors(input, input.sum(1, true)), {.global_batch = 16});
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    for (const auto& batch : data.epoch(epoch)) {
      strategy.run(batch, [&](lockstep::ReplicaContext& ctx, const lockstep::Batch& part) {
        const Tensor error = model(ctx)->forward(part.input) - part.target;
        ctx.scale_loss(error.pow(2).mean()).backward();
        optimizer.step(ctx);
      });
    }
  }
  std::cout << strategy.name() << "\n" << strategy.describe_variables() << "\n";
  return model.state();
}

int main() {
  RoundRobinStrategy round_robin({.devices = {"cpu:0", "cpu:1"}, .replicas = 4, .seed = 7});
  lockstep::MirroredStrategy mirrored({.devices = {"cpu:0", "cpu:1"}, .replicas = 4, .seed = 7});
  const auto values = train(round_robin);
  for (const auto& [name, expected] : train(mirrored)) {
    if (!torch::equal(values.at(name), expected)) throw std::logic_error(name + " differs");
  }
  std::cout << "both have the same bits: where a variable lies decides no result\n";
}
