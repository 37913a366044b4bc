// A program whose asynchronous result differs from run to run.
#pragma once

#include <torch/nn/functional/loss.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/server/parameter_server.h"
#include "tests/server/small_net.h"

namespace lockstep::testing {

/// Lets another thread run some times, so that no two runs have the same order of events.
inline void dawdle() {
  thread_local std::minstd_rand draw(std::random_device{}());
  for (auto left = draw() % 12; left > 0; --left) std::this_thread::yield();
}

/// A network with dropout whose samples have rows of a table too.
struct RecordedProgram {
  explicit RecordedProgram(ParameterServerOptions options) : strategy(std::move(options)) {}

  /// All that the program has learned.
  std::vector<torch::Tensor> state() const {
    std::vector<torch::Tensor> all;
    for (const Variable& one : strategy.variables()) all.push_back(one.read());
    all.push_back(table.read(torch::arange(16)));
    return all;
  }

  ParameterServerStrategy strategy;
  Replicated<std::shared_ptr<SmallNet>> model = strategy.make_module([] { return std::make_shared<SmallNet>(); });
  Embedding table = strategy.make_embedding({.name = "rows", .rows = 16, .dim = 6});
  Optimizer optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(0.01));
  RowsOptimizer rows_optimizer = strategy.make_optimizer(table, torch::optim::AdagradOptions(0.05));
  Variable seen = strategy.make_variable(torch::zeros({}), {.name = "seen", .trainable = false});
  DistributedDataset data = strategy.distribute(some_samples(60), {.global_batch = 4, .shuffle = true});
  std::function<torch::Tensor(WorkerContext&)> train = [this](WorkerContext& ctx) {
    dawdle();
    const Batch batch = data.next(ctx);
    const torch::Tensor rows = table.look_up(ctx, batch.ids.remainder(16));
    dawdle();
    const torch::Tensor output = model(ctx)->forward(batch.input + rows);
    const torch::Tensor loss = torch::nn::functional::cross_entropy(output, batch.target);
    ctx.scale_loss(loss).backward();
    seen.assign_add(ctx, torch::ones({}));
    ctx.push();
    return loss.detach();
  };
};

inline bool are_equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!torch::equal(a[i], b[i])) return false;
  }
  return true;
}

}  // namespace lockstep::testing
