// ResNet-18 for small images, as it is used on CIFAR-10: a first convolution of 3 x 3 and no pooling after it.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tools/models/models.h"

namespace lockstep::tools {

/// Two convolutions of 3 x 3 around which the input is added; the first one may halve the image.
class ResidualBlock final : public torch::nn::Module {
 public:
  ResidualBlock(int64_t inputs, int64_t outputs, int64_t stride);
  torch::Tensor forward(const torch::Tensor& images);

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d norm1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d norm2_;
  torch::nn::Conv2d shortcut_{nullptr};  // where the shape changes
  torch::nn::BatchNorm2d shortcut_norm_{nullptr};
};

/// [n, 3, 32, 32] to [n, 10]. Images of [n, 1, 28, 28] are taken too: padded to 32 x 32 with zeros and repeated in each
/// channel.
class Resnet18 final : public Classifier {
 public:
  explicit Resnet18(double dropout);  // before the last layer
  torch::Tensor forward(const torch::Tensor& images) override;
  double training_flops() const override;

 private:
  torch::nn::Conv2d conv_;
  torch::nn::BatchNorm2d norm_;
  std::vector<std::shared_ptr<ResidualBlock>> blocks_;
  torch::nn::Dropout dropout_{nullptr};
  torch::nn::Linear fc_;
};

}  // namespace lockstep::tools
