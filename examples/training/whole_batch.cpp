// Work on the gradient of the whole batch: an optimizer with a closure, a natural gradient, sharpness-aware
// minimization, and clipping by value. And a loss that looks across all samples.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"

using lockstep::Batch;
using lockstep::Reduction;
using lockstep::ReplicaContext;
using torch::Tensor;

int main() {
  torch::set_num_threads(1);
  torch::manual_seed(5);  // of the samples below
  const Tensor x = torch::rand({50, 2}, torch::kDouble);
  const Tensor y = torch::sin(4 * x.sum(1, true));

  // [gradients]
  lockstep::MirroredStrategy strategy({.replicas = 3, .seed = 1});
  auto model = strategy.make_module([] {
    torch::nn::Sequential net(torch::nn::Linear(2, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
    net->to(torch::kDouble);
    return net;
  });
  const auto parts = strategy.split(x, y);  // of the whole batch: 17, 17 and 16 samples

  // The loss of the whole batch, and its gradient by each parameter.
  auto loss_and_gradients = [&]() -> std::pair<Tensor, std::vector<Tensor>> {
    auto [losses, gradients] = strategy.run(parts, [&](ReplicaContext& ctx, const Batch& part) {
      const auto parameters = model(ctx)->parameters();
      auto loss = ctx.scale_loss(torch::mse_loss(model(ctx)->forward(part.input), part.target));
      auto own = torch::autograd::grad({loss}, parameters, {}, false, false, /*allow_unused=*/true);
      for (std::size_t i = 0; i < own.size(); ++i) {
        if (!own[i].defined()) own[i] = torch::zeros_like(parameters[i]);  // of a part without samples
      }
      own.push_back(loss.detach());
      const auto sums = ctx.all_reduce(Reduction::kSum, own);
      return std::tuple(sums.back(), std::vector<Tensor>(sums.begin(), sums.end() - 1));
    });
    return {*losses.begin(), *gradients.begin()};  // all replicas have the same
  };
  // [gradients]

  const auto at_first = model.state();
  // [clipping]
  auto optimizer = strategy.make_optimizer(model, torch::optim::SGDOptions(0.05));
  strategy.run(parts, [&](ReplicaContext& ctx, const Batch& part) {
    ctx.scale_loss(torch::mse_loss(model(ctx)->forward(part.input), part.target)).backward();
    optimizer.step(ctx, {.clip_value = 0.01});  // each element of the sum, not of each replica's part
  });
  // [clipping]
  double furthest = 0;
  for (const auto& [name, value] : model.state()) {
    furthest = std::max(furthest, (value - at_first.at(name)).abs().max().item<double>());
  }
  std::cout << "a step clipped by value moves no weight by more than " << 0.05 * 0.01 << ": "
            << (std::abs(furthest - 0.05 * 0.01) < 1e-12 ? "yes" : "no") << "\n";

  // [steps]
  // A step by a gradient of the whole batch, whatever was made of it: one replica gives it, the others give zeros.
  auto step_by = [&](const std::vector<Tensor>& gradients) {
    strategy.run([&](ReplicaContext& ctx) {
      auto parameters = model(ctx)->parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        parameters[i].mutable_grad() = ctx.replica_id() == 0 ? gradients[i].clone() : torch::zeros_like(gradients[i]);
      }
      optimizer.step(ctx, {.loss_scaled_by_hand = true, .gradients_changed_on_purpose = true});
    });
  };

  // Sharpness-aware minimization: the gradient at the worst point nearby, applied at the present one.
  const auto weights = model.state();
  auto [loss_before, gradients] = loss_and_gradients();
  double squares = 0;
  for (const auto& gradient : gradients) squares += gradient.square().sum().item<double>();
  const auto variables = model.variables();  // parameters, in the order of gradients
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    strategy.update(variables[i], [&](Tensor& value) { value.add_(gradients[i], 0.05 / std::sqrt(squares)); });
  }
  const auto worst = loss_and_gradients().second;
  model.load(weights);
  step_by(worst);
  // [steps]
  std::cout << "a sharpness-aware step makes the loss smaller: "
            << (loss_and_gradients().first.item<double>() < loss_before.item<double>() ? "yes" : "no") << "\n";

  // [lbfgs]
  auto copy = model.export_module();  // one module, of which LibTorch's optimizer knows
  torch::optim::LBFGS lbfgs(copy->parameters(),
                            torch::optim::LBFGSOptions(1).max_iter(60).line_search_fn("strong_wolfe"));
  auto load_copy = [&] {
    std::map<std::string, Tensor> values;
    for (const auto& item : copy->named_parameters()) values[item.key()] = item.value().detach();
    model.load(values);
  };
  auto closure = [&] {
    load_copy();
    auto [loss, sums] = loss_and_gradients();
    auto parameters = copy->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = sums[i];
    return loss;
  };
  lbfgs.step(closure);
  load_copy();  // what it ends with
  // [lbfgs]
  std::cout << "L-BFGS: the loss is " << (loss_and_gradients().first.item<double>() < 1e-2 ? "small" : "large") << "\n";

  // [natural]
  lockstep::MirroredStrategy linear_strategy({.replicas = 3, .seed = 1});
  auto linear = linear_strategy.make_variable(torch::zeros({2, 1}, torch::kDouble), {.name = "w"});
  auto sgd = linear_strategy.make_optimizer(std::vector{linear}, torch::optim::SGDOptions(1));
  const Tensor straight = x.matmul(torch::tensor({{3.0}, {-2.0}}, torch::kDouble));
  // The gradient, divided by the Fisher matrix of the whole batch: one step to the least squares of a linear model.
  linear_strategy.run(linear_strategy.split(x, straight), [&](ReplicaContext& ctx, const Batch& part) {
    auto w = linear.value(ctx);
    const auto whole = static_cast<double>(part.global_size);
    ctx.scale_loss((part.input.matmul(w) - part.target).square().mean()).backward();
    auto sums =
        ctx.all_reduce(Reduction::kSum, std::vector<Tensor>{w.grad(), part.input.t().matmul(part.input) / whole});
    auto natural = torch::linalg_solve(2 * sums[1], sums[0]);
    w.mutable_grad() = ctx.replica_id() == 0 ? natural : torch::zeros_like(natural);
    sgd.step(ctx, {.gradients_changed_on_purpose = true});
  });
  // [natural]
  std::cout << "one step of natural gradient: w = " << std::round(linear.read()[0].item<double>() * 1e6) / 1e6 << ", "
            << std::round(linear.read()[1].item<double>() * 1e6) / 1e6 << "\n";

  // [across]
  // z = w x for two features; c = sum of z_a z_b over the batch, divided by its size; the loss is (c - 1)^2.
  const Tensor features = torch::tensor({{1.0, 2.0}, {2.0, 1.0}, {3.0, -1.0}, {4.0, 4.0}});
  auto gradient_by = [&](int64_t replicas, bool gathers) {
    lockstep::MirroredStrategy any({.replicas = replicas, .seed = 1});
    auto w = any.make_variable(torch::tensor(0.5), {.name = "w"});
    auto step = any.make_optimizer(std::vector{w}, torch::optim::SGDOptions(1));
    any.run(any.split(features), [&](ReplicaContext& ctx, const Batch& part) {
      auto z = w.value(ctx) * part.input;
      Tensor c;
      if (gathers) {  // all samples on each replica
        auto all = ctx.all_gather(z);
        c = (all.select(1, 0) * all.select(1, 1)).sum() / part.global_size;
      } else {  // or sums of what each replica has
        c = ctx.all_reduce(Reduction::kSum, (z.select(1, 0) * z.select(1, 1)).sum()) / part.global_size;
      }
      ctx.scale_loss((c - 1).square()).backward();  // each replica has the whole loss, and its share of the weight
      step.step(ctx);
    });
    return 0.5 - w.read().item<double>();
  };
  // [across]
  for (const int64_t replicas : {1, 2, 3, 6}) {
    std::cout << "a loss over all samples, " << replicas << " replicas: gradient " << gradient_by(replicas, true)
              << " gathered, " << gradient_by(replicas, false) << " summed\n";
  }
}
