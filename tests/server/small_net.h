// A small network with dropout, and samples for it.
#pragma once

#include <torch/nn/functional/activation.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/data/dataset.h"

namespace lockstep::testing {

struct SmallNet : torch::nn::Module {
  SmallNet() : a(register_module("a", torch::nn::Linear(6, 8))), b(register_module("b", torch::nn::Linear(8, 3))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return b->forward(torch::dropout(torch::tanh(a->forward(x)), 0.2, is_training()));
  }
  torch::nn::Linear a;
  torch::nn::Linear b;
};

inline Dataset some_samples(int64_t samples) {
  const torch::Tensor x = torch::arange(samples * 6).to(torch::kFloat).mul(0.37).sin().view({samples, 6});
  return data::from_tensors(x, x.argmax(1).remainder(3));
}

}  // namespace lockstep::testing
