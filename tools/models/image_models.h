// Classifiers of images.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <vector>

#include "tools/models/models.h"

namespace lockstep::tools {

/// Dense layers with relu and dropout between them: [n, ...] to [n, widths.back()].
class Mlp final : public Classifier {
 public:
  Mlp(const std::vector<int64_t>& widths, double dropout);
  torch::Tensor forward(const torch::Tensor& input) override;
  double training_flops() const override;

 private:
  std::vector<torch::nn::Linear> layers_;
  torch::nn::Dropout dropout_{nullptr};
};

/// Two convolutions with batch normalisation and pooling, then two dense layers: [n, 1, 28, 28] to [n, 10].
class Cnn final : public Classifier {
 public:
  explicit Cnn(double dropout);
  torch::Tensor forward(const torch::Tensor& images) override;
  double training_flops() const override;

 private:
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d norm1_{nullptr};
  torch::nn::Conv2d conv2_{nullptr};
  torch::nn::BatchNorm2d norm2_{nullptr};
  torch::nn::Linear fc1_{nullptr};
  torch::nn::Linear fc2_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
};

}  // namespace lockstep::tools
