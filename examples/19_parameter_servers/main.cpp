// Variables on parameter servers: workers run scheduled steps, each at its own pace, and each with a stream of its own.
// Usage: parameter_servers [RECORD]; with it the run can be repeated.
#include <torch/torch.h>

#include <iomanip>
#include <iostream>
#include <memory>
#include <vector>

#include "lockstep/lockstep.h"

struct Net : torch::nn::Module {
  Net() : a(register_module("a", torch::nn::Linear(16, 16))), b(register_module("b", torch::nn::Linear(16, 1))) {}
  torch::Tensor forward(const torch::Tensor& rows) { return b->forward(torch::relu(a->forward(rows))).squeeze(1); }
  torch::nn::Linear a;
  torch::nn::Linear b;
};

/// What each of 1,000 users pays: a number that only the user's own row can learn.
lockstep::Dataset payments() {
  const auto users = torch::arange(1000);
  return lockstep::data::from_tensors(users, users.mul(37).remainder(10).to(torch::kFloat) / 10);
}

int main(int argc, char** argv) {
  lockstep::ParameterServerStrategy strategy({.partitioner = lockstep::min_size_partitioner(256 << 10),
                                              .record = argc > 1 ? argv[1] : "",  // which `lockstep replay` takes
                                              .workers = 2,
                                              .servers = 2,
                                              .seed = 7});
  auto model = strategy.make_module([] { return std::make_shared<Net>(); });  // variables live on the servers
  auto table = strategy.make_embedding({.name = "users", .rows = 10'000'000, .dim = 16});  // rows, made when first used
  auto optimizer = strategy.make_optimizer(model, torch::optim::AdagradOptions(0.05));
  auto rows_optimizer = strategy.make_optimizer(table, torch::optim::AdagradOptions(0.3));
  auto data = strategy.distribute_to_workers([](const lockstep::InputContext& context) {
    const auto mine = payments().shard(context.num_input_pipelines, context.input_pipeline_id);
    return lockstep::data::from_dataset(mine).batch(50).repeat();
  });

  const auto loss_of = [&](lockstep::WorkerContext& ctx, const lockstep::Batch& batch) {
    auto rows = table.look_up(ctx, batch.input);  // pulls these rows alone
    return torch::mse_loss(model(ctx)->forward(rows), batch.target);
  };
  auto train = strategy.step("train", [&](lockstep::WorkerContext& ctx) {
    auto loss = loss_of(ctx, data.next(ctx));
    ctx.scale_loss(loss).backward();
    ctx.push();  // all gradients of the step, whole or not at all
    return loss.detach();
  });

  return strategy.coordinate([&](lockstep::Coordinator& coordinator) {
    auto test = strategy.distribute(payments(), {.global_batch = 100});
    const auto before = coordinator.evaluate(test, loss_of).item<double>();
    std::vector<lockstep::RemoteValue<torch::Tensor>> losses;
    for (int k = 0; k < 600; ++k) losses.push_back(coordinator.schedule(train));
    coordinator.join();
    const auto after = coordinator.evaluate(test, loss_of).item<double>();
    std::cout << "steps that count: " << coordinator.steps() << "\n"
              << "rows: " << table.size() << "\n"
              << (losses.back().get().item<double>() < 1 ? "the last step has a loss\n" : "the last step has none\n")
              << (after < before / 4 ? "the loss has become less than a quarter\n" : "the loss is too high\n");
    if (argc > 1) std::cout << "the loss is " << std::setprecision(17) << after << "\n";  // other bits in each run
  });
}
