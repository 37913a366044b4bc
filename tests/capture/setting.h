// A small program for tests of captured steps, whose step is a test's own.
#pragma once

#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/support/programs.h"

namespace lockstep::testing {

struct CapturedNet : torch::nn::Module {
  CapturedNet()
      : a(register_module("a", torch::nn::Linear(4, 8))),
        drop(register_module("drop", torch::nn::Dropout(0.25))),
        b(register_module("b", torch::nn::Linear(8, 1))) {}
  torch::Tensor forward(const torch::Tensor& x) { return b->forward(drop->forward(torch::relu(a->forward(x)))); }
  torch::nn::Linear a;
  torch::nn::Dropout drop;
  torch::nn::Linear b;
};

/// A program whose step is a test's own.
struct Setting {
  explicit Setting(int64_t replicas = 2) : strategy({.devices = lanes(1), .replicas = replicas, .seed = 3}) {}
  PerReplica<Batch> batch(int64_t k, int64_t size = 12) const {
    const torch::Tensor x = torch::arange(size * 4).to(torch::kFloat).add(k).sin().view({size, 4});
    return strategy.split(x, x.sum(1, true));
  }
  torch::Tensor loss(ReplicaContext& ctx, const Batch& batch) {
    return ctx.scale_loss(torch::mse_loss(model(ctx)->forward(batch.input), batch.target));
  }
  std::vector<torch::Tensor> weights() const {
    std::vector<torch::Tensor> all;
    for (const Variable& one : strategy.variables()) all.push_back(one.read());
    return all;
  }

  MirroredStrategy strategy;
  Replicated<std::shared_ptr<CapturedNet>> model = strategy.make_module([] { return std::make_shared<CapturedNet>(); });
  Optimizer optimizer = strategy.make_optimizer(model, torch::optim::AdamWOptions(0.01));
};

inline bool are_equal(const std::vector<torch::Tensor>& some, const std::vector<torch::Tensor>& others) {
  return std::equal(some.begin(), some.end(), others.begin(), others.end(),
                    [](const torch::Tensor& a, const torch::Tensor& b) { return torch::equal(a, b); });
}

}  // namespace lockstep::testing
