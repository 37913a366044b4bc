// The models that `lockstep train` knows.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::tools {

/// A classifier of images [n, 1, 28, 28]: gives logits [n, 10].
class ImageModel : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(const torch::Tensor& images) = 0;
};

/// Two hidden layers of 256.
class Mlp final : public ImageModel {
 public:
  explicit Mlp(double dropout);
  torch::Tensor forward(const torch::Tensor& images) override;

 private:
  torch::nn::Linear fc1_{nullptr};
  torch::nn::Linear fc2_{nullptr};
  torch::nn::Linear fc3_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
};

/// Two convolutions with batch normalisation and pooling, then two dense layers.
class Cnn final : public ImageModel {
 public:
  explicit Cnn(double dropout);
  torch::Tensor forward(const torch::Tensor& images) override;

 private:
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d norm1_{nullptr};
  torch::nn::Conv2d conv2_{nullptr};
  torch::nn::BatchNorm2d norm2_{nullptr};
  torch::nn::Linear fc1_{nullptr};
  torch::nn::Linear fc2_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
};

/// The names that make_model knows.
const std::vector<std::string>& model_names();

/// A fresh model; `name` is one of model_names().
std::shared_ptr<ImageModel> make_model(const std::string& name, double dropout);

}  // namespace lockstep::tools
