// Modules whose forward pass moves buffers, for tests of what becomes of them.
#pragma once

#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "lockstep/reduce/operands.h"

namespace lockstep::moved_buffers {

using internal::same_bits;
using torch::Tensor;
using Named = std::map<std::string, Tensor>;

/// Moves buffers in training, by the rows that it is given: a codebook by a moving average, and counts.
struct CodesImpl : torch::nn::Module {
  torch::nn::Linear enc{nullptr};
  Tensor codes, seen, total, any;
  bool fails = false;
  CodesImpl() {
    enc = register_module("enc", torch::nn::Linear(4, 2));
    codes = register_buffer("codes", torch::tensor({{-1.0F, 0.0F}, {1.0F, 0.0F}}));
    seen = register_buffer("seen", torch::full({}, 5, torch::kLong));
    total = register_buffer("total", torch::zeros({4}));
    any = register_buffer("any", torch::zeros({2}, torch::kBool));
    register_buffer("constant", torch::arange(3).to(torch::kFloat));
  }
  Tensor forward(const Tensor& x) {
    const Tensor z = enc->forward(x);
    const Tensor near = torch::cdist(z.detach(), codes).argmin(1);
    const Tensor loss = (z - codes.index_select(0, near)).square().mean();
    if (!is_training()) return loss;
    const torch::NoGradGuard no_grad;
    for (int64_t k = 0; k < 2; ++k) {
      const Tensor mine = z.detach().index_select(0, torch::nonzero(near == k).flatten());
      if (mine.size(0) > 0) codes.select(0, k).mul_(0.8).add_(mine.mean(0), 0.2);
    }
    seen.add_(x.size(0));
    total.add_(x.sum(0));
    any.logical_or_((x.mean() > 0).expand({2}));
    if (fails) throw std::runtime_error("no");
    return loss;
  }
};
TORCH_MODULE(Codes);

/// A module with its own buffers and batch normalisation.
struct NetImpl : torch::nn::Module {
  Codes codes{nullptr};
  torch::nn::Sequential net{nullptr};
  NetImpl() {
    codes = register_module("codes", Codes());
    net = register_module("net", torch::nn::Sequential(torch::nn::Linear(4, 6), torch::nn::BatchNorm1d(6),
                                                       torch::nn::ReLU(), torch::nn::Linear(6, 1)));
  }
  Tensor forward(const Tensor& x) { return codes->forward(x) + net->forward(x).square().mean(); }
};
TORCH_MODULE(Net);

inline torch::nn::Sequential normed() {
  return torch::nn::Sequential(torch::nn::Linear(4, 6), torch::nn::BatchNorm1d(6), torch::nn::ReLU(),
                               torch::nn::Linear(6, 1));
}

/// Rows of a step, the same on all workers.
inline Tensor rows(int64_t step, int64_t count = 12) {
  return torch::arange(count * 4)
      .to(torch::kFloat)
      .add(static_cast<double>(step) * 17)
      .sin()
      .mul(2)
      .reshape({count, 4});
}

template <class M>
void train_step(Strategy& strategy, const Replicated<M>& model, Optimizer& optimizer, int64_t step) {
  strategy.run(strategy.split(rows(step)), [&](ReplicaContext& ctx, const Batch& b) {
    ctx.scale_loss(model(ctx)->forward(b.input).square().mean()).backward();
    optimizer.step(ctx);
  });
}

/// Replicas' buffers by name, as a step or an evaluation sees them.
template <class M>
std::vector<Named> buffers_in_evaluation(Strategy& strategy, const Replicated<M>& model) {
  const auto seen = strategy.evaluate([&](ReplicaContext& ctx) {
    Named buffers;
    for (const auto& item : model(ctx)->named_buffers()) buffers[item.key()] = item.value().clone();
    return buffers;
  });
  return {seen.begin(), seen.end()};
}

template <class M>
std::vector<Named> components_of(const Replicated<M>& model) {
  std::vector<Named> all;
  for (const Variable& one : model.variables()) {
    const auto components = one.components();
    all.resize(components.size());
    for (std::size_t r = 0; r < components.size(); ++r) all[r][one.name()] = *(components.begin() + r);
  }
  return all;
}

inline bool same(const Named& a, const Named& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](const auto& one, const auto& other) {
           return one.first == other.first && same_bits(one.second, other.second);
         });
}

}  // namespace lockstep::moved_buffers
