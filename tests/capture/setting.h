// A small program for tests of captured steps, whose step is a test's own.
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
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

/// Where torch::equal takes 0 for -0.
inline bool have_same_bits(const torch::Tensor& one, const torch::Tensor& other) {
  if (one.sizes() != other.sizes() || one.scalar_type() != other.scalar_type()) return false;
  const torch::Tensor a = one.contiguous();
  const torch::Tensor b = other.contiguous();
  return std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
}

inline bool are_equal(const std::vector<torch::Tensor>& some, const std::vector<torch::Tensor>& others) {
  return std::equal(some.begin(), some.end(), others.begin(), others.end(), have_same_bits);
}

/// Runs `make(setting)`'s step so often, as it is and captured, and expects the same weights.
/// Gives what the captured one says of itself.
template <class Make>
std::string expect_same(const Make& make, int runs = 20, int64_t replicas = 2, int64_t* replayed = nullptr) {
  Setting plain(replicas);
  Setting with_capture(replicas);
  const auto step = make(plain);
  const auto captured = with_capture.strategy.capture(make(with_capture));
  for (int k = 0; k < runs; ++k) {
    const auto one = plain.strategy.run(plain.batch(k), step);
    const auto other = with_capture.strategy.run(with_capture.batch(k), captured);
    for (int64_t r = 0; r < replicas; ++r) EXPECT_TRUE(have_same_bits(*(one.begin() + r), *(other.begin() + r))) << k;
  }
  EXPECT_TRUE(are_equal(plain.weights(), with_capture.weights()));
  if (replayed) *replayed = captured.num_replayed();
  return captured.describe();
}

}  // namespace lockstep::testing
