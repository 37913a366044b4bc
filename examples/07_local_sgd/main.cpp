// Fits a line by local SGD on four replicas: they train their weights locally and meet at every fourth step.
#include "local_sgd.h"

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <iomanip>
#include <iostream>
#include <set>

using torch::Tensor;

// How many different values the replicas have of a variable of one element.
std::size_t count_different(const lockstep::Variable& variable) {
  std::set<float> different;
  for (const Tensor& component : variable.components()) different.insert(component.item<float>());
  return different.size();
}

int main() {
  LocalSgdStrategy strategy({.devices = {"cpu:0", "cpu:1"}, .replicas = 4, .average_every = 4, .seed = 7});

  // The training loop is that of any strategy.
  const auto model = strategy.make_module([] { return torch::nn::Linear(1, 1); });
  const auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.1));
  const Tensor input = torch::arange(32).to(torch::kFloat).view({32, 1}) / 16 - 1;
  const auto data =
      strategy.distribute(lockstep::data::from_tensors(input, 3 * input + 1), {.global_batch = 16, .shuffle = true});
  const lockstep::Variable weight = model.variables()[0];
  const lockstep::Variable bias = model.variables()[1];
  for (int64_t epoch = 0; epoch < 100; ++epoch) {
    for (const auto& batch : data.epoch(epoch)) {
      strategy.run(batch, [&](lockstep::ReplicaContext& ctx, const lockstep::Batch& part) {
        const Tensor error = model(ctx)->forward(part.input) - part.target;
        ctx.scale_loss(error.pow(2).mean()).backward();
        optimizer.step(ctx);  // each replica by its own gradient; at every fourth step the weights become their mean
      });
      if (strategy.step() <= 8) {
        std::cout << "after step " << strategy.step() << " the replicas have " << count_different(weight)
                  << (count_different(weight) == 1 ? " weight\n" : " different weights\n");
      }
    }
  }

  // read() is the mean of what the replicas have.
  std::cout << std::fixed << std::setprecision(2) << "after step " << strategy.step()
            << " the line is y = " << weight.read().item<double>() << " x + " << bias.read().item<double>() << "\n\n"
            << strategy.describe_variables();
}
