#include "tools/models.h"

#include <ATen/ATen.h>

namespace lockstep::tools {

namespace nn = torch::nn;

Mlp::Mlp(double dropout)
    : fc1_(register_module("fc1", nn::Linear(784, 256))),
      fc2_(register_module("fc2", nn::Linear(256, 256))),
      fc3_(register_module("fc3", nn::Linear(256, 10))),
      dropout_(register_module("dropout", nn::Dropout(dropout))) {}

torch::Tensor Mlp::forward(const torch::Tensor& images) {
  torch::Tensor x = at::relu(fc1_->forward(images.flatten(1)));
  x = at::relu(fc2_->forward(dropout_->forward(x)));
  return fc3_->forward(dropout_->forward(x));
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

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names{"mlp", "cnn"};
  return names;
}

std::shared_ptr<ImageModel> make_model(const std::string& name, double dropout) {
  if (name == "mlp") return std::make_shared<Mlp>(dropout);
  return std::make_shared<Cnn>(dropout);
}

}  // namespace lockstep::tools
