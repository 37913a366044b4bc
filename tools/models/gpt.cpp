#include "tools/models/gpt.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "lockstep/core/torch_compat.h"

namespace lockstep::tools {

namespace nn = torch::nn;

namespace {

nn::LayerNorm layer_norm(int64_t width) { return nn::LayerNorm(nn::LayerNormOptions({width})); }

nn::Embedding embedding(int64_t count, int64_t width) {
  nn::Embedding made(count, width);
  const at::NoGradGuard no_grad;
  made->weight.normal_(0, 0.02);  // as GPT-2's; LibTorch's deviation of 1 learns slowly
  return made;
}

}  // namespace

DecoderBlock::DecoderBlock(int64_t width, int64_t heads, double dropout)
    : heads_(heads),
      norm1_(register_module("norm1", layer_norm(width))),
      qkv_(register_module("qkv", nn::Linear(width, 3 * width))),
      out_(register_module("out", nn::Linear(width, width))),
      norm2_(register_module("norm2", layer_norm(width))),
      up_(register_module("up", nn::Linear(width, 4 * width))),
      down_(register_module("down", nn::Linear(4 * width, width))) {
  if (dropout > 0) dropout_ = register_module("dropout", nn::Dropout(dropout));
}

torch::Tensor DecoderBlock::forward(const torch::Tensor& input) {
  const int64_t n = input.size(0);
  const int64_t positions = input.size(1);
  const int64_t width = input.size(2);
  const auto drop = [&](const torch::Tensor& x) { return dropout_ ? dropout_->forward(x) : x; };
  const auto qkv = qkv_->forward(norm1_->forward(input))
                       .view({n, positions, 3, heads_, width / heads_})
                       .permute({2, 0, 3, 1, 4})
                       .unbind();
  const torch::Tensor attended =
      internal::causal_attention(qkv[0], qkv[1], qkv[2]).transpose(1, 2).reshape({n, positions, width});
  const torch::Tensor x = input + drop(out_->forward(attended));
  return x + drop(down_->forward(at::gelu(up_->forward(norm2_->forward(x)))));
}

Gpt::Gpt(const ModelOptions& options)
    : options_(options),
      token_(register_module("token", embedding(options.vocabulary, options.width))),
      position_(register_module("position", embedding(options.context, options.width))),
      norm_(nullptr),
      head_(nullptr) {
  if (options.dropout > 0) dropout_ = register_module("dropout", nn::Dropout(options.dropout));
  for (int64_t i = 0; i < options.layers; ++i) {
    const auto block = std::make_shared<DecoderBlock>(options.width, options.heads, options.dropout);
    blocks_.push_back(register_module(fmt::format("block{}", i + 1), block));
  }
  norm_ = register_module("norm", layer_norm(options.width));
  head_ = register_module("head", nn::Linear(options.width, options.vocabulary));
}

torch::Tensor Gpt::forward(const torch::Tensor& characters) {
  torch::Tensor x = token_->forward(characters) + position_->weight.narrow(0, 0, characters.size(1));
  if (dropout_) x = dropout_->forward(x);
  for (const auto& block : blocks_) x = block->forward(x);
  return head_->forward(norm_->forward(x)).view({characters.numel(), options_.vocabulary});
}

double Gpt::training_flops() const {
  const auto width = static_cast<double>(options_.width);
  const auto context = static_cast<double>(options_.context);
  // A block's dense layers have 12 width^2 weights; attention is two products over half of all pairs of positions.
  const double block = 12 * width * width + width * context;
  const double head = width * static_cast<double>(options_.vocabulary);
  return 2 * 3 * context * (static_cast<double>(options_.layers) * block + head);
}

}  // namespace lockstep::tools
