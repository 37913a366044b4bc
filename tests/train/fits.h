// A small model with data, trained by a Trainer or by the loop that a Trainer stands for, and what comes of it.
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/support/workers.h"

namespace lockstep::testing {

/// Draws random numbers, and has a buffer that each replica moves apart.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Linear(6, 8))),
        last(register_module("last", torch::nn::Linear(8, 3))) {
    mean = register_buffer("mean", torch::zeros({6}));
  }
  torch::Tensor forward(const torch::Tensor& input) {
    if (is_training() && input.size(0) > 0) {
      const torch::NoGradGuard no_grad;
      mean.mul_(0.9).add_(input.mean(0), 0.1);
    }
    return last(torch::dropout(torch::relu(first(input)), 0.3, is_training()));
  }
  torch::nn::Linear first;
  torch::nn::Linear last;
  torch::Tensor mean;
};
TORCH_MODULE(Net);

inline torch::Tensor inputs(int64_t count) {
  return torch::arange(count * 6).to(torch::kFloat).mul(0.37).sin().view({count, 6});
}
inline torch::Tensor classes(int64_t count) { return torch::arange(count).mul(7).remainder(3); }

inline torch::Tensor cross_entropy(const torch::Tensor& output, const Batch& batch) {
  return torch::nn::functional::cross_entropy(output, batch.target);
}

/// The share of right classes, as a metric of the program's own.
inline MetricSpec accuracy_spec() {
  return {.name = "accuracy",
          .sums = 2,
          .update = [](const torch::Tensor& output, const Batch& batch) -> MetricCounts {
            const torch::Tensor right = output.argmax(1).eq(batch.target).sum().to(torch::kDouble);
            return {.sums = torch::stack({right, torch::scalar_tensor(batch.size(), torch::kDouble)})};
          },
          .results = [](const MetricCounts& whole) -> std::map<std::string, double> {
            const auto* const sum = whole.sums.data_ptr<double>();
            return {{"accuracy", sum[1] == 0 ? 0 : sum[0] / sum[1]}};
          }};
}

/// The largest output of all, from rows: for what is not a sum.
inline MetricSpec largest_spec() {
  return {.name = "largest",
          .columns = 1,
          .update = [](const torch::Tensor& output, const Batch&) -> MetricCounts {
            return {.rows = output.max().to(torch::kDouble).view({1, 1})};
          },
          .results = [](const MetricCounts& whole) -> std::map<std::string, double> {
            return {{"largest", whole.rows.size(0) == 0 ? 0 : whole.rows.max().item<double>()}};
          }};
}

/// 13 samples in batches of 4: an epoch has 4 steps, the last of one sample.
struct Setting {
  explicit Setting(Strategy& of, int64_t samples = 13, int64_t global_batch = 4)
      : strategy(of),
        model(strategy.make_module([] { return Net(); })),
        optimizer(strategy.make_optimizer(model, torch::optim::AdamWOptions(0.05))),
        train(strategy.distribute(data::from_tensors(inputs(samples), classes(samples)),
                                  {.global_batch = global_batch, .shuffle = true})),
        validation(strategy.distribute(data::from_tensors(inputs(7).add(0.1), classes(7)), {.global_batch = 3})) {}

  Trainer trainer(TrainerOptions options = {}) const {
    options.loss = cross_entropy;
    if (options.metrics.empty()) options.metrics = {accuracy_spec(), largest_spec()};
    if (!options.clip_global_norm) options.clip_global_norm = 0.5;
    return Trainer(strategy, model, optimizer, std::move(options));
  }

  Strategy& strategy;
  Replicated<Net> model;
  Optimizer optimizer;
  DistributedDataset train;
  DistributedDataset validation;
};

/// Everything that the run is, as one text: equal on all workers, and for all numbers of them.
inline std::string digest_of(const Setting& setting) {
  std::vector<std::pair<std::string, torch::Tensor>> all;
  for (const auto& [name, value] : setting.model.state()) all.emplace_back("model/" + name, value);
  for (const auto& [name, value] : setting.optimizer.state()) all.emplace_back("optimizer/" + name, value);
  all.emplace_back("step", torch::scalar_tensor(setting.strategy.step(), torch::kLong));
  return sha256_of(all);
}

}  // namespace lockstep::testing
