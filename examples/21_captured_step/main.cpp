// A step that is recorded once and replayed, with the same bits, and one that cannot be, and what is said about it.
#include <torch/torch.h>

#include <iostream>
#include <string>

#include "lockstep/lockstep.h"

namespace {

using namespace lockstep;

struct Net : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return b->forward(torch::relu(a->forward(x))); }
  torch::nn::Linear a = register_module("a", torch::nn::Linear(8, 16));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(16, 1));
};

/// A strategy with a network, an optimizer and data.
struct Program {
  MirroredStrategy strategy{{.devices = {"cpu:0"}, .replicas = 2, .seed = 7}};
  Replicated<std::shared_ptr<Net>> model = strategy.make_module([] { return std::make_shared<Net>(); });
  Optimizer optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(0.01));
  DistributedDataset data = [&] {
    const torch::Tensor x = torch::arange(320 * 8).to(torch::kFloat).sin().view({320, 8});
    return strategy.distribute(data::from_tensors(x, x.sum(1, true)), {.global_batch = 16});
  }();

  torch::Tensor step(ReplicaContext& ctx, const Batch& batch) {
    const torch::Tensor loss = ctx.scale_loss(torch::mse_loss(model(ctx)->forward(batch.input), batch.target));
    loss.backward();
    optimizer.step(ctx);
    return loss.detach();
  }

  /// An epoch by any step; gives the weights.
  template <class Step>
  torch::Tensor train(const Step& step) {
    for (const auto& batch : data.epoch(0)) strategy.run(batch, step);
    return model.variables().front().read();
  }
};

}  // namespace

int main() try {
  Program plain;
  const torch::Tensor weights =
      plain.train([&](ReplicaContext& ctx, const Batch& batch) { return plain.step(ctx, batch); });

  Program captured;
  const auto step =
      captured.strategy.capture([&](ReplicaContext& ctx, const Batch& batch) { return captured.step(ctx, batch); });
  const torch::Tensor same = captured.train(step);
  std::cout << (step.num_replayed() > 20 ? "most" : "few") << " of 40 calls were replayed, and the weights are "
            << (torch::equal(weights, same) ? "equal" : "not equal") << "\n";

  // The host reads the loss, and decides by it: nobody knows what it would decide in a replay.
  Program branching;
  const auto branches = branching.strategy.capture([&](ReplicaContext& ctx, const Batch& batch) {
    const torch::Tensor loss = branching.step(ctx, batch);
    if (loss.item<double>() > 1e6) throw std::runtime_error("the loss grows");
    return loss;
  });
  const torch::Tensor also_same = branching.train(branches);
  std::cout << branches.num_replayed() << " of 40 calls were replayed, and the weights are "
            << (torch::equal(weights, also_same) ? "equal" : "not equal") << "\n";
  std::cout << branches.describe();
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
