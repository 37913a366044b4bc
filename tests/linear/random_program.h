// Random training programs that use gradients in every way that LibTorch has.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/autograd.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"
#include "lockstep/variable/variable_state.h"
#include "tests/linear/some_numbers.h"

namespace lockstep::testing {

using torch::Tensor;

/// How a layer multiplies.
enum class Multiply { kLinear, kLinearWithoutBias, kLinear3d, kMm, kMmTransposed, kAddmm, kMatmul3d, kEmbedding };
constexpr int kMultiplies = 8;

struct Layer {
  Multiply multiply = Multiply::kLinear;
  bool twice = false;  // square weights only
  bool relu = false;
  Variable weight;
  Variable bias;
};

/// How a micro-batch is differentiated.
enum class Differentiate { kBackward, kTwice, kGrad, kCreateGraph, kSecondOrder };
constexpr int kDifferentiates = 5;

/// What a step does to a weight's gradient before the optimizer's step.
enum class Act {
  kNothing,
  kRead,
  kScale,
  kClip,
  kClone,
  kKeep,
  kTranspose,
  kDrop,
  kReplace,
  kAddOther,
  kData,
  kReduce,
  kSetData,
  kOptim
};
constexpr int kActs = 14;

/// One random program. It makes the same decisions wherever it runs.
class RandomProgram {
 public:
  explicit RandomProgram(unsigned seed) : seed_(seed), draws_(seed) {}

  /// How many gradients were kept as factors when the program computed them last.
  int64_t num_factored() const {
    return std::count_if(layers_.begin(), layers_.end(), [](const Layer& layer) {
      return layer.weight.state().gradient_form() == internal::GradientForm::kFactors;
    });
  }
  /// What it decided so far, for messages.
  const std::string& text() const { return text_; }

  /// What it leaves behind: weights, the optimizer's state, and the gradients that it kept.
  std::vector<std::pair<std::string, Tensor>> run(Strategy& strategy) {
    make(strategy);
    const int64_t replicas = strategy.num_replicas();
    std::vector<std::vector<Tensor>> kept(static_cast<std::size_t>(replicas));
    std::vector<std::pair<std::string, Tensor>> result;
    for (int step = 0; step < 2; ++step) {
      const Decisions decisions = decide(replicas);
      strategy.run([&](ReplicaContext& ctx) {
        train(ctx, decisions, step, kept[static_cast<std::size_t>(ctx.replica_id().value())]);
      });
    }
    for (const Layer& layer : layers_) result.emplace_back(layer.weight.name(), layer.weight.read());
    for (const Optimizer& optimizer : optimizers_) {
      for (const auto& one : optimizer.state()) result.push_back(one);
    }
    if (average_) {
      for (const Variable& one : average_->variables()) result.emplace_back(one.name(), one.read());
    }
    for (std::size_t r = 0; r < kept.size(); ++r) {
      for (const Tensor& one : kept[r]) result.emplace_back(fmt::format("kept by replica {}", r), one);
    }
    return result;
  }

 private:
  struct Decisions {
    std::vector<std::vector<int64_t>> rows;    // by replica, of each micro-batch; 0: none
    std::vector<Differentiate> differentiate;  // by micro-batch
    std::vector<Act> acts;                     // by layer
    std::vector<int64_t> parts;                // by replica, the loss's share of their sum; empty: it is not scaled
    double scale = 1;
    bool hook = false;
    bool overwrite = false;
    StepOptions options;
  };

  // Few different ones, as each new shape of a product is first compared with LibTorch's.
  int64_t pick_width() { return std::array<int64_t, 6>{1, 3, 8, 17, 32, 70}[static_cast<std::size_t>(pick(6))]; }
  int64_t pick_rows() { return std::array<int64_t, 7>{0, 1, 2, 5, 8, 9, 96}[static_cast<std::size_t>(pick(7))]; }
  int pick(int n) { return static_cast<int>(draws_() % static_cast<unsigned>(n)); }

  void make(Strategy& strategy) {
    const int count = 1 + pick(3);
    int64_t in = pick_width();
    in_ = in;
    std::vector<Variable> variables;
    for (int l = 0; l < count; ++l) {
      Layer layer;
      layer.multiply = static_cast<Multiply>(pick(kMultiplies));
      layer.relu = pick(2) == 0;
      layer.twice = pick(4) == 0;
      const int64_t out = layer.twice ? in : pick_width();
      const bool by_rows = layer.multiply == Multiply::kMm || layer.multiply == Multiply::kAddmm;
      const std::vector<int64_t> sizes = by_rows ? std::vector{in, out} : std::vector{out, in};
      const std::string name = fmt::format("{}.{}", seed_, l);
      layer.weight = strategy.make_variable(some(sizes, l), {.name = name});
      layer.bias = strategy.make_variable(some({out}, l), {.name = name + ".bias"});
      variables.push_back(layer.weight);
      variables.push_back(layer.bias);
      layers_.push_back(layer);
      text_ += fmt::format("layer {}: multiply {}, {} to {}{}{}\n", l, static_cast<int>(layer.multiply), in, out,
                           layer.twice ? ", twice" : "", layer.relu ? ", relu" : "");
      in = out;
    }
    if (pick(4) == 0 && variables.size() > 2) {  // two optimizers
      add_optimizer(strategy, {variables.begin(), variables.begin() + 2});
      add_optimizer(strategy, {variables.begin() + 2, variables.end()});
    } else {
      add_optimizer(strategy, variables);
    }
    const bool averages = pick(4) == 0;
    // What replicas train apart has no average.
    if (averages && variables.front().synchronization() == VariableSynchronization::kOnWrite) {
      average_ = strategy.make_moving_average(variables, {.decay = 0.5});
    }
  }

  void add_optimizer(Strategy& strategy, const std::vector<Variable>& variables) {
    switch (pick(4)) {
      case 0: return optimizers_.push_back(strategy.make_optimizer(variables, torch::optim::SGDOptions(0.01)));
      case 1:
        return optimizers_.push_back(strategy.make_optimizer(variables, torch::optim::SGDOptions(0.01).momentum(0.9)));
      case 2: return optimizers_.push_back(strategy.make_optimizer(variables, torch::optim::AdamWOptions(0.01)));
      default: return optimizers_.push_back(strategy.make_optimizer(variables, torch::optim::RMSpropOptions(0.01)));
    }
  }

  Decisions decide(int64_t replicas) {
    Decisions result;
    const int micro_batches = 1 + pick(3);
    for (int64_t r = 0; r < replicas; ++r) {
      auto& rows = result.rows.emplace_back();
      for (int m = 0; m < micro_batches; ++m) rows.push_back(pick_rows());
    }
    for (int m = 0; m < micro_batches; ++m) {
      result.differentiate.push_back(pick(2) == 0 ? Differentiate::kBackward
                                                  : static_cast<Differentiate>(pick(kDifferentiates)));
    }
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      result.acts.push_back(pick(2) == 0 ? Act::kNothing : static_cast<Act>(pick(kActs)));
    }
    for (const auto& rows : result.rows) text_ += fmt::format("rows {}\n", fmt::join(rows, ", "));
    for (const Differentiate how : result.differentiate)
      text_ += fmt::format("differentiate {}\n", static_cast<int>(how));
    for (const Act what : result.acts) text_ += fmt::format("act {}\n", static_cast<int>(what));
    if (pick(3) == 0) {
      for (int64_t r = 0; r < replicas; ++r) result.parts.push_back(pick(3));
      text_ += fmt::format("parts {}\n", fmt::join(result.parts, ", "));
    }
    result.scale = pick(6) == 0 ? 1e-22 : 1;  // products underflow
    result.hook = pick(8) == 0;
    result.overwrite = pick(2) == 0;
    if (pick(4) == 0) result.options.clip_global_norm = 0.5;
    result.options.check_finite = pick(4) == 0;
    result.options.gradients_changed_on_purpose = pick(2) == 0;
    return result;
  }

  Tensor forward(ReplicaContext& ctx, Tensor h) const {
    for (const Layer& layer : layers_) {
      for (int times = layer.twice ? 2 : 1; times > 0; --times) h = multiply(ctx, layer, h);
      if (layer.relu) h = h.relu();
    }
    return h;
  }

  static Tensor multiply(ReplicaContext& ctx, const Layer& layer, const Tensor& h) {
    const Tensor& weight = layer.weight.value(ctx);
    const Tensor& bias = layer.bias.value(ctx);
    switch (layer.multiply) {
      case Multiply::kLinear: return torch::linear(h, weight, bias);
      case Multiply::kLinearWithoutBias: return torch::linear(h, weight);
      case Multiply::kLinear3d: return torch::linear(h.unsqueeze(0), weight, bias).squeeze(0);
      case Multiply::kMm: return h.mm(weight);
      case Multiply::kMmTransposed: return h.mm(weight.t());
      case Multiply::kAddmm: return torch::addmm(bias, h, weight);
      case Multiply::kMatmul3d: return torch::matmul(h.unsqueeze(1), weight.t()).squeeze(1);
      case Multiply::kEmbedding: {  // tied: the rows are looked up, and multiply
        const Tensor ids = torch::arange(h.size(0)).remainder(weight.size(0));
        return h.mm(weight.t()) + torch::embedding(weight, ids).sum(1, true);
      }
    }
    return h;
  }

  void train(ReplicaContext& ctx, const Decisions& decisions, int step, std::vector<Tensor>& kept) const {
    const auto r = static_cast<std::size_t>(ctx.replica_id().value());
    const Tensor& first = layers_.front().weight.value(ctx);
    unsigned hook = 0;
    if (decisions.hook) {
      hook = first.register_hook([&](const Tensor& gradient) {
        kept.push_back(gradient);
        return gradient * 2;
      });
    }
    for (std::size_t m = 0; m < decisions.differentiate.size(); ++m) {
      const int64_t rows = decisions.rows[r][m];
      if (rows == 0) continue;
      Tensor x = some({rows, in_}, static_cast<double>(step * 100 + static_cast<int>(r * 10 + m))) * decisions.scale;
      const Tensor loss = forward(ctx, x).pow(2).mean();
      if (decisions.parts.empty()) {
        differentiate(ctx, loss, decisions.differentiate[m]);
      } else {
        const int64_t all = std::accumulate(decisions.parts.begin(), decisions.parts.end(), int64_t{0});
        const Tensor scaled = ctx.scale_loss(loss, decisions.parts[r], std::max<int64_t>(all, 1));
        // For autograd::grad no weight is part of a loss that is scaled to 0.
        differentiate(ctx, scaled, decisions.parts[r] == 0 ? Differentiate::kBackward : decisions.differentiate[m]);
      }
      if (decisions.overwrite) x.fill_(1e30);
    }
    if (decisions.hook) first.remove_hook(hook);
    for (std::size_t l = 0; l < layers_.size(); ++l) act(ctx, l, decisions.acts[l], kept);
    for (const Optimizer& optimizer : optimizers_) optimizer.step(ctx, decisions.options);
    if (average_) average_->update(ctx);
  }

  void differentiate(ReplicaContext& ctx, const Tensor& loss, Differentiate how) const {
    const auto add = [](const Tensor& weight, const Tensor& gradient) {
      if (!gradient.defined()) return;
      Tensor& own = weight.mutable_grad();
      own = own.defined() ? own + gradient : gradient;
    };
    const Tensor& first = layers_.front().weight.value(ctx);
    switch (how) {
      case Differentiate::kBackward: return loss.backward();
      case Differentiate::kTwice: loss.backward({}, /*retain_graph=*/true); return loss.backward();
      case Differentiate::kGrad: return add(first, torch::autograd::grad({loss}, {first})[0]);
      case Differentiate::kCreateGraph: {
        const Tensor gradient = torch::autograd::grad({loss}, {first}, {}, true, /*create_graph=*/true)[0];
        loss.backward();
        return add(first, gradient.detach());
      }
      case Differentiate::kSecondOrder: {
        const Tensor gradient = torch::autograd::grad({loss}, {first}, {}, true, /*create_graph=*/true)[0];
        return (loss + gradient.pow(2).mean()).backward();
      }
    }
  }

  void act(ReplicaContext& ctx, std::size_t l, Act what, std::vector<Tensor>& kept) const {
    const Tensor& weight = layers_[l].weight.value(ctx);
    if (what == Act::kReduce) {  // all replicas meet here, whatever gradients they have
      const Tensor own = weight.grad().defined() ? weight.grad() : torch::zeros_like(weight);
      kept.push_back(ctx.all_reduce(Reduction::kSum, own));
      return;
    }
    if (!weight.grad().defined()) return;
    Tensor& gradient = weight.mutable_grad();
    switch (what) {
      case Act::kNothing:
      case Act::kReduce: return;
      case Act::kRead: return kept.push_back(gradient.norm());
      case Act::kScale: {
        gradient.mul_(0.5);
        return;
      }
      case Act::kClip: {
        torch::nn::utils::clip_grad_norm_({weight}, 0.1);
        return;
      }
      case Act::kClone: {
        gradient = gradient.clone();
        return;
      }
      case Act::kKeep: return kept.push_back(gradient.detach());
      case Act::kTranspose: return kept.push_back(gradient.t().contiguous());
      case Act::kDrop: {
        gradient = Tensor();
        return;
      }
      case Act::kReplace: {
        gradient = gradient.t().t();
        return;
      }
      case Act::kAddOther: {
        gradient.add_(gradient.detach(), 0.25);
        return;
      }
      case Act::kData: {
        gradient.data().sub_(0.125);
        return;
      }
      case Act::kSetData: {
        gradient.set_data(torch::full_like(gradient, 0.25));
        return;
      }
      case Act::kOptim: {  // a copy, as the weight itself is written by the library alone
        Tensor copy = weight.detach().clone().requires_grad_();
        copy.mutable_grad() = gradient;
        torch::optim::AdamW(std::vector<Tensor>{copy}, torch::optim::AdamWOptions(0.1)).step();
        kept.push_back(copy.detach());
        return;
      }
    }
  }

  const unsigned seed_;
  std::mt19937 draws_;
  std::string text_;
  int64_t in_ = 0;
  std::vector<Layer> layers_;
  std::vector<Optimizer> optimizers_;
  std::optional<MovingAverage> average_;
};

}  // namespace lockstep::testing
