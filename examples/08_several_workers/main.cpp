// The README's network on several workers, one worker that updates all, and the mistakes that several workers make.
#include <torch/torch.h>

#include <functional>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "lockstep/lockstep.h"

using lockstep::ReplicaContext;
using lockstep::ReplicaId;
using lockstep::Strategy;
using torch::Tensor;

// Only the chief reports: every worker would print the same.
void say(const Strategy& strategy, const std::string& line) {
  if (strategy.is_chief()) std::cout << line << "\n";
}

// The program of the README. It differs in the name of the strategy, and in who prints.
void train(Strategy& strategy) {
  auto model = strategy.make_module([] {
    return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(784, 64), torch::nn::ReLU(),
                                 torch::nn::Linear(64, 10));
  });
  auto optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(1e-3));
  auto data = strategy.distribute(lockstep::data::digits().train, {.global_batch = 256, .shuffle = true});
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    double loss = 0;
    for (const auto& batch : data.epoch(epoch)) {
      auto losses = strategy.run(batch, [&](ReplicaContext& ctx, const lockstep::Batch& b) {
        auto part = ctx.scale_loss(torch::nn::functional::cross_entropy(model(ctx)->forward(b.input), b.target));
        part.backward();
        optimizer.step(ctx);
        return part.detach();
      });
      loss = strategy.reduce(lockstep::Reduction::kSum, losses).item<double>();  // over all replicas of all workers
    }
    std::ostringstream line;
    line << "epoch " << epoch << ", loss " << std::setprecision(2) << loss;
    say(strategy, line.str());
  }
}

// One replica has found something that all are to use. Each worker knows what its own replicas have found.
void let_one_update_all(Strategy& strategy) {
  const auto threshold = strategy.make_variable(torch::zeros({1}), {.name = "threshold", .trainable = false});
  const auto found = strategy.run([](ReplicaContext& ctx) { return torch::full({1}, 10.0 + ctx.replica_id()); });

  // Which replica has the best one is for all workers to know: gather() gives all values to each of them.
  const Tensor all = strategy.gather(found);
  const ReplicaId best = all.argmax().item<int64_t>();

  // All workers make the call, with the same replica. Its value comes from the worker that has the replica.
  const int64_t place = best - found.first_replica();
  const bool is_here = place >= 0 && place < static_cast<int64_t>(found.size());
  strategy.update_from(best, threshold, is_here ? found[best] : Tensor());
  std::ostringstream line;
  line << "threshold: " << threshold.read().item<double>();
  say(strategy, line.str());
}

// Does something that must not work, and prints what its user gets to see: the same on all workers.
template <class Error>
void broken(const Strategy& strategy, const std::string& what, const std::function<void()>& mistake) {
  say(strategy, "broken, " + what);
  try {
    mistake();
  } catch (const Error& error) {
    say(strategy, std::string("  ") + error.what());
    return;
  }
  throw std::logic_error("this should have been an error");
}

void make_mistakes(Strategy& strategy) {
  // Values that each worker computes for itself, from its own seed, clock or files.
  broken<lockstep::DivergenceError>(strategy, "a value that differs between workers", [&] {
    strategy.make_variable(torch::tensor(0.5 + static_cast<double>(strategy.worker_index())), {.name = "temperature"});
  });

  // Work for one worker in which all must take part.
  const auto total = strategy.make_variable(torch::tensor(0.0), {.name = "total", .trainable = false});
  broken<lockstep::UsageError>(strategy, "a call of all workers that only the chief makes", [&] {
    if (strategy.is_chief()) {
      strategy.reduce(lockstep::Reduction::kSum, strategy.per_replica([](ReplicaId) { return torch::tensor(1.0); }));
    } else {
      total.assign(torch::tensor(1.0));
    }
  });
  // Right: what one worker does alone goes into on_chief, and all have its result.
  total.assign(strategy.on_chief([] { return torch::tensor(42.0); }));
  std::ostringstream line;
  line << "on_chief: " << total.read().item<double>();
  say(strategy, line.str());
}

int main() try {
  lockstep::MultiWorkerMirroredStrategy strategy({.devices = {"cpu:0"}, .replicas = 4, .seed = 7});
  train(strategy);
  let_one_update_all(strategy);
  if (strategy.num_workers() > 1) make_mistakes(strategy);
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return static_cast<int>(lockstep::exit_code_of(error));
}
