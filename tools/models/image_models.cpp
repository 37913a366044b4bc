#include "tools/models/image_models.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

namespace lockstep::tools {

namespace nn = torch::nn;

Mlp::Mlp(const std::vector<int64_t>& widths, double dropout) {
  for (std::size_t i = 1; i < widths.size(); ++i) {
    layers_.push_back(register_module(fmt::format("fc{}", i), nn::Linear(widths[i - 1], widths[i])));
  }
  if (dropout > 0) dropout_ = register_module("dropout", nn::Dropout(dropout));
}

torch::Tensor Mlp::forward(const torch::Tensor& input) {
  torch::Tensor x = input.dim() > 2 ? input.flatten(1) : input;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (i > 0) x = at::relu(x);
    if (i > 0 && dropout_) x = dropout_->forward(x);
    x = layers_[i]->forward(x);
  }
  return x;
}

double Mlp::training_flops() const {
  double flops = 0;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const int products = i == 0 ? 2 : 3;  // the input needs no gradient
    flops += 2.0 * products * static_cast<double>(layers_[i]->weight.numel());
  }
  return flops;
}

Cnn::Cnn(double dropout)
    : conv1_(register_module("conv1", nn::Conv2d(nn::Conv2dOptions(1, 16, 3).padding(1).bias(false)))),
      norm1_(register_module("norm1", nn::BatchNorm2d(16))),
      conv2_(register_module("conv2", nn::Conv2d(nn::Conv2dOptions(16, 32, 3).padding(1).bias(false)))),
      norm2_(register_module("norm2", nn::BatchNorm2d(32))),
      fc1_(register_module("fc1", nn::Linear(32 * 7 * 7, 128))),
      fc2_(register_module("fc2", nn::Linear(128, 10))),
      dropout_(register_module("dropout", nn::Dropout(dropout))) {}

torch::Tensor Cnn::forward(const torch::Tensor& images) {
  torch::Tensor x = at::max_pool2d(at::relu(norm1_->forward(conv1_->forward(images))), 2);
  x = at::max_pool2d(at::relu(norm2_->forward(conv2_->forward(x))), 2);
  x = at::relu(fc1_->forward(x.flatten(1)));
  return fc2_->forward(dropout_->forward(x));
}

double Cnn::training_flops() const {
  const double first = 28 * 28 * 9 * 1 * 16;
  const double rest = 14 * 14 * 9 * 16 * 32 + 32 * 7 * 7 * 128 + 128 * 10;
  return 2 * (2 * first + 3 * rest);  // the images need no gradient
}

}  // namespace lockstep::tools
