// A LibTorch loop, ported: a regression with a schedule of the learning rate, and early stopping that keeps the best
// weights.
#include <torch/torch.h>

#include <iostream>
#include <limits>

#include "lockstep/lockstep.h"

int main() {
  const torch::Tensor x = torch::linspace(-3, 3, 600).view({600, 1});
  const torch::Tensor y = torch::sin(x) + 0.5 * x;
  const auto all = lockstep::data::from_tensors(torch::cat({x.slice(0, 0, 600, 2), x.slice(0, 1, 600, 2)}),
                                                torch::cat({y.slice(0, 0, 600, 2), y.slice(0, 1, 600, 2)}));

  // [main]
  lockstep::MirroredStrategy strategy({.replicas = 4, .seed = 7});
  auto model = strategy.make_module(
      [] { return torch::nn::Sequential(torch::nn::Linear(1, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1)); });
  auto optimizer = strategy.make_optimizer(model, torch::optim::AdamOptions(0.02));
  auto train = strategy.distribute(lockstep::data::slice(all, 0, 300), {.global_batch = 50, .shuffle = true});
  auto validate = strategy.distribute(lockstep::data::slice(all, 300, 600), {.global_batch = 100});

  // The mean error over a data set: each batch's mean, weighted by its part of the data.
  auto validation_loss = [&] {
    double sum = 0;
    for (const auto& batch : validate.epoch(0)) {
      auto sums = strategy.evaluate(batch, [&](lockstep::ReplicaContext& ctx, const lockstep::Batch& part) {
        return torch::mse_loss(model(ctx)->forward(part.input), part.target, at::Reduction::Sum).item<double>();
      });
      sum += strategy.reduce(lockstep::Reduction::kSum, sums).item<double>();
    }
    return sum / static_cast<double>(validate.size());
  };

  double best = std::numeric_limits<double>::infinity();
  auto best_weights = model.state();
  int64_t since_best = 0;
  int64_t epoch = 0;
  for (; epoch < 300 && since_best < 10; ++epoch) {
    for (const auto& batch : train.epoch(epoch)) {
      strategy.run(batch, [&](lockstep::ReplicaContext& ctx, const lockstep::Batch& part) {
        ctx.scale_loss(torch::mse_loss(model(ctx)->forward(part.input), part.target)).backward();
        optimizer.step(ctx);
      });
    }
    if (epoch > 0 && epoch % 20 == 0) {  // torch::optim::StepLR(optimizer, 20, 0.5), called here as step()
      for (int64_t g = 0; g < optimizer.num_groups(); ++g) {
        optimizer.set_learning_rate(optimizer.learning_rate(g) * 0.5, g);
      }
    }
    const double loss = validation_loss();
    ++since_best;
    if (loss < best) {
      best = loss;
      best_weights = model.state();  // copies
      since_best = 0;
    }
  }
  model.load(best_weights);
  // [main]

  std::cout << (best < 0.01 ? "the curve is fitted" : "the curve is not fitted") << "\n"
            << (validation_loss() == best ? "the best weights are back" : "these are not the best weights") << "\n"
            << (optimizer.learning_rate() < 0.02 ? "the learning rate went down" : "the learning rate is the first one")
            << "\n";
}
