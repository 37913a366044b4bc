// A decoder-only transformer of characters.
#pragma once

#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tools/models/models.h"

namespace lockstep::tools {

/// Causal attention, then two dense layers, each with normalisation before and the input added after.
class DecoderBlock final : public torch::nn::Module {
 public:
  DecoderBlock(int64_t width, int64_t heads, double dropout);
  /// [n, positions, width] to the same.
  torch::Tensor forward(const torch::Tensor& input);

 private:
  const int64_t heads_;
  torch::nn::LayerNorm norm1_;
  torch::nn::Linear qkv_;
  torch::nn::Linear out_;
  torch::nn::LayerNorm norm2_;
  torch::nn::Linear up_;
  torch::nn::Linear down_;
  torch::nn::Dropout dropout_{nullptr};
};

/// int64 [n, positions], at most `context` of them, to [n * positions, vocabulary]: each row is about the character
/// that follows. Dropout is after the embedding and before each addition.
class Gpt final : public Classifier {
 public:
  explicit Gpt(const ModelOptions& options);
  torch::Tensor forward(const torch::Tensor& characters) override;
  double training_flops() const override;

 private:
  const ModelOptions options_;
  torch::nn::Embedding token_;
  torch::nn::Embedding position_;
  torch::nn::Dropout dropout_{nullptr};
  std::vector<std::shared_ptr<DecoderBlock>> blocks_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear head_;
};

}  // namespace lockstep::tools
