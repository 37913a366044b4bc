// A net whose gradients fill several buckets.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

namespace lockstep::testing {

/// Layers of some megabytes together, so that there are several buckets, and parameters that share one.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(torch::nn::LinearOptions(40, 3000)));
    second = register_module("second", torch::nn::Linear(torch::nn::LinearOptions(3000, 200)));
    third = register_module("third", torch::nn::Linear(torch::nn::LinearOptions(200, 1).bias(false)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return third->forward(torch::tanh(second->forward(torch::tanh(first->forward(x)))));
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
};
TORCH_MODULE(Net);

}  // namespace lockstep::testing
