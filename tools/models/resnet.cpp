#include "tools/models/resnet.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

namespace lockstep::tools {

namespace nn = torch::nn;

namespace {

nn::Conv2d conv3x3(int64_t inputs, int64_t outputs, int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(inputs, outputs, 3).stride(stride).padding(1).bias(false));
}

struct Stage {
  int64_t channels;
  int64_t stride;  // of its first block
};
constexpr Stage kStages[] = {{64, 1}, {128, 2}, {256, 2}, {512, 2}};
constexpr int kBlocksOfAStage = 2;
constexpr int64_t kFirstChannels = 64;
constexpr int64_t kSide = 32;
constexpr int64_t kClasses = 10;

}  // namespace

ResidualBlock::ResidualBlock(int64_t inputs, int64_t outputs, int64_t stride)
    : conv1_(register_module("conv1", conv3x3(inputs, outputs, stride))),
      norm1_(register_module("norm1", nn::BatchNorm2d(outputs))),
      conv2_(register_module("conv2", conv3x3(outputs, outputs, 1))),
      norm2_(register_module("norm2", nn::BatchNorm2d(outputs))) {
  if (stride == 1 && inputs == outputs) return;
  const auto options = nn::Conv2dOptions(inputs, outputs, 1).stride(stride).bias(false);
  shortcut_ = register_module("shortcut", nn::Conv2d(options));
  shortcut_norm_ = register_module("shortcut_norm", nn::BatchNorm2d(outputs));
}

torch::Tensor ResidualBlock::forward(const torch::Tensor& images) {
  torch::Tensor x = norm1_->forward(conv1_->forward(images)).relu_();
  x = norm2_->forward(conv2_->forward(x));
  x += shortcut_ ? shortcut_norm_->forward(shortcut_->forward(images)) : images;
  return x.relu_();
}

Resnet18::Resnet18(double dropout)
    : conv_(register_module("conv", conv3x3(3, kFirstChannels, 1))),
      norm_(register_module("norm", nn::BatchNorm2d(kFirstChannels))),
      fc_(nullptr) {
  int64_t inputs = kFirstChannels;
  for (const Stage& stage : kStages) {
    for (int b = 0; b < kBlocksOfAStage; ++b) {
      const auto block = std::make_shared<ResidualBlock>(inputs, stage.channels, b == 0 ? stage.stride : 1);
      blocks_.push_back(register_module(fmt::format("block{}", blocks_.size() + 1), block));
      inputs = stage.channels;
    }
  }
  if (dropout > 0) dropout_ = register_module("dropout", nn::Dropout(dropout));
  fc_ = register_module("fc", nn::Linear(inputs, kClasses));
}

torch::Tensor Resnet18::forward(const torch::Tensor& images) {
  torch::Tensor x = images;
  if (x.size(1) == 1) x = at::constant_pad_nd(x, {2, 2, 2, 2}).expand({-1, 3, -1, -1});
  x = norm_->forward(conv_->forward(x)).relu_();
  for (const auto& block : blocks_) x = block->forward(x);
  x = at::mean(x, {2, 3});
  if (dropout_) x = dropout_->forward(x);
  return fc_->forward(x);
}

double Resnet18::training_flops() const {
  double side = kSide;
  double first = 9.0 * 3 * kFirstChannels * side * side;
  double rest = 0;
  double inputs = kFirstChannels;
  for (const Stage& stage : kStages) {
    side /= static_cast<double>(stage.stride);
    const auto outputs = static_cast<double>(stage.channels);
    const double pixels = side * side;
    rest += 9 * inputs * outputs * pixels + (2 * kBlocksOfAStage - 1) * 9 * outputs * outputs * pixels;
    if (inputs != outputs) rest += inputs * outputs * pixels;
    inputs = outputs;
  }
  rest += inputs * kClasses;
  return 2 * (2 * first + 3 * rest);  // the images need no gradient
}

}  // namespace lockstep::tools
