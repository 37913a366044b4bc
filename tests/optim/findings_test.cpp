// Findings: a probable mistake in a step is logged once and counted; a step without one has no finding.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <functional>
#include <mutex>

#include "tests/support/programs.h"

namespace lockstep {
namespace {

using testing::lanes;
using torch::Tensor;
namespace nn = torch::nn;

/// Collects the log's lines while it lives.
class Log {
 public:
  Log() {
    set_log_sink([this](LogLevel, std::string_view line) {
      const std::lock_guard<std::mutex> lock(mutex_);
      lines_.emplace_back(line);
    });
  }
  ~Log() { set_log_sink({}); }
  int count(const std::string& part) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<int>(std::count_if(
        lines_.begin(), lines_.end(), [&](const std::string& line) { return line.find(part) != std::string::npos; }));
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

struct NetImpl : nn::Module {
  NetImpl() {
    register_module("embedding", embedding);
    register_module("norm", norm);
    register_module("hidden", hidden);
    register_module("output", output);
  }
  Tensor forward(const Tensor& input) {
    Tensor x = norm(embedding(input.to(torch::kLong)).mean(1));
    x = torch::relu(hidden(hidden(x)));  // a weight used twice
    return output(x);
  }
  nn::Embedding embedding{10, 6};
  nn::LayerNorm norm{nn::LayerNormOptions({6})};
  nn::Linear hidden{6, 6};
  nn::Linear output{6, 3};
};
TORCH_MODULE(Net);

class FindingsOf : public ::testing::TestWithParam<int64_t> {
 protected:
  template <class Fn>
  void run(Fn fn, int times = 1) {
    for (int i = 0; i < times; ++i) strategy_.run(batch(), fn);
  }
  PerReplica<Batch> batch() {
    return strategy_.per_replica([&](ReplicaId) {
      Batch part;
      part.input = torch::ones({2, 4}, torch::kLong);
      part.target = torch::ones({2, 3});
      part.global_size = 2 * GetParam();
      return part;
    });
  }
  Tensor loss(ReplicaContext& ctx, const Batch& part) {
    return (model_(ctx)->forward(part.input) - part.target).square().mean();
  }
  int64_t count(const std::string& code) const {
    for (const Finding& finding : strategy_.findings()) {
      if (finding.code == code) return finding.count;
    }
    return 0;
  }
  int64_t if_several(int64_t times) const { return GetParam() == 1 ? 0 : times; }

  const Log log_;
  MirroredStrategy strategy_{{.devices = lanes(1), .replicas = GetParam()}};
  const Replicated<Net> model_ = strategy_.make_module([] { return Net(); });
  const Optimizer optimizer_ = strategy_.make_optimizer(model_, torch::optim::SGDOptions(0.01));
};

TEST_P(FindingsOf, ALossThatWasNotScaled) {
  run(
      [&](ReplicaContext& ctx, const Batch& part) {
        loss(ctx, part).backward();
        optimizer_.step(ctx);
      },
      3);
  EXPECT_EQ(count("LS-LOSS-NOT-SCALED"), if_several(3));
  EXPECT_EQ(log_.count("LS-LOSS-NOT-SCALED"), if_several(1));
  EXPECT_EQ(static_cast<int64_t>(strategy_.findings().size()), if_several(1));
}

TEST_P(FindingsOf, ALossScaledByHandIsNone) {
  run([&](ReplicaContext& ctx, const Batch& part) {
    (loss(ctx, part) / static_cast<double>(ctx.num_replicas())).backward();
    optimizer_.step(ctx, {.loss_scaled_by_hand = true});
  });
  EXPECT_TRUE(strategy_.findings().empty());
}

TEST_P(FindingsOf, ClippingEachReplicaByItself) {
  run(
      [&](ReplicaContext& ctx, const Batch& part) {
        ctx.scale_loss(loss(ctx, part)).backward();
        nn::utils::clip_grad_norm_(model_(ctx)->parameters(), 1e-3);
        optimizer_.step(ctx);
      },
      3);
  EXPECT_EQ(count("LS-GRADIENT-CHANGED"), if_several(3));
  EXPECT_EQ(log_.count("LS-GRADIENT-CHANGED"), if_several(1));
  EXPECT_EQ(log_.count("clip_global_norm"), if_several(1));
}

TEST_P(FindingsOf, AGradientChangedInPlaceOnOneReplica) {
  run([&](ReplicaContext& ctx, const Batch& part) {
    ctx.scale_loss(loss(ctx, part)).backward();
    if (ctx.replica_id() == GetParam() - 1) model_(ctx)->output->bias.mutable_grad().mul_(0.5);
    optimizer_.step(ctx);
  });
  EXPECT_EQ(count("LS-GRADIENT-CHANGED"), if_several(1));
  EXPECT_EQ(log_.count("'model.output.bias'"), if_several(1));
  EXPECT_EQ(log_.count("replica " + std::to_string(GetParam() - 1)), if_several(1));
}

TEST_P(FindingsOf, AGradientThatAnotherTensorReplaced) {
  run(
      [&](ReplicaContext& ctx, const Batch& part) {
        ctx.scale_loss(loss(ctx, part)).backward();
        for (const Tensor& parameter : model_(ctx)->parameters()) parameter.mutable_grad() = parameter.grad() * 0.5;
        optimizer_.step(ctx);
      },
      2);
  EXPECT_EQ(count("LS-GRADIENT-CHANGED"), if_several(2));
  EXPECT_EQ(log_.count("LS-GRADIENT-CHANGED"), if_several(1));
}

TEST_P(FindingsOf, AnotherTensorOfTheSameValuesIsNone) {
  const auto wide = strategy_.make_module([] { return nn::Linear(300, 256); }, {.name = "wide"});
  const auto for_wide = strategy_.make_optimizer(wide, torch::optim::SGDOptions(0.01));
  const std::vector<std::function<Tensor(const Tensor&)>> changes{
      [](const Tensor& gradient) { return gradient.clone(); }, [](const Tensor& gradient) { return gradient.detach(); },
      [](const Tensor& gradient) { return gradient.to(torch::kDouble).to(torch::kFloat); },
      [](const Tensor&) { return Tensor(); },  // of a layer that is left as it is
  };
  for (const auto& change : changes) {
    run([&](ReplicaContext& ctx, const Batch& part) {
      const Tensor input = part.input.to(torch::kFloat).repeat({1, 75});  // few samples: gradients may be factors
      ctx.scale_loss(wide(ctx)->forward(input).square().mean()).backward();
      for (const Tensor& parameter : wide(ctx)->parameters()) parameter.mutable_grad() = change(parameter.grad());
      for_wide.step(ctx);
    });
  }
  for (const Finding& finding : strategy_.findings()) ADD_FAILURE() << finding.code << ": " << finding.text;
}

TEST_P(FindingsOf, AChangeOnPurposeIsNone) {
  run([&](ReplicaContext& ctx, const Batch& part) {
    ctx.scale_loss(loss(ctx, part)).backward();
    model_(ctx)->output->bias.mutable_grad().mul_(0.5);
    optimizer_.step(ctx, {.gradients_changed_on_purpose = true});
  });
  EXPECT_TRUE(strategy_.findings().empty());
}

TEST_P(FindingsOf, WhatAutogradDoesItselfIsNone) {
  run(
      [&](ReplicaContext& ctx, const Batch& part) {
        for (int micro = 0; micro < 3; ++micro) ctx.scale_loss(loss(ctx, part), 1, 3 * ctx.num_replicas()).backward();
        ctx.scale_loss(loss(ctx, part), 1, 3 * ctx.num_replicas()).backward({}, false, /*create_graph=*/true);
        optimizer_.step(ctx);
      },
      20);
  run([&](ReplicaContext& ctx, const Batch& part) { ctx.scale_loss(loss(ctx, part)).backward(); });
  run([&](ReplicaContext& ctx, const Batch& part) {
    model_(ctx)->output->weight.register_hook([](const Tensor& gradient) { return gradient * 2; });
    ctx.scale_loss(loss(ctx, part)).backward();
    optimizer_.step(ctx);
    ctx.scale_loss(loss(ctx, part)).backward();
    optimizer_.zero_grad(ctx);
    for (const Tensor& parameter : model_(ctx)->parameters()) {
      parameter.mutable_grad() = torch::ones_like(parameter);  // by hand, and another tensor
    }
    ctx.scale_loss(torch::ones({}));
    optimizer_.step(ctx);
  });
  for (const Finding& finding : strategy_.findings()) ADD_FAILURE() << finding.code << ": " << finding.text;
}

INSTANTIATE_TEST_SUITE_P(Replicas, FindingsOf, ::testing::Values(1, 2, 3),
                         [](const auto& one) { return "V" + std::to_string(one.param); });

}  // namespace
}  // namespace lockstep
