// A training program with every kind of state, small enough to be saved a thousand times.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/checkpoint_access.h"
#include "lockstep/lockstep.h"
#include "tests/support/programs.h"

namespace lockstep::testing {

/// Every value of every item as one digest; of this process's replicas. As in a checkpoint, an option that is as the
/// optimizer was made with is left out.
inline std::string digest_of(const Strategy& strategy) {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (const StateItem& item : strategy.state_items()) {
    if (item.is_of_torch) continue;
    if (item.made_with && item.read().front().item<double>() == *item.made_with) continue;
    for (const at::Tensor& value : item.read()) named.emplace_back(item.name, value);
  }
  return sha256_of(named);
}

/// Over any strategy: dropout, batch normalisation, two groups, averages, an on-read variable, a named data set, a
/// tracked one, and a value of the program's own.
class Training {
 public:
  explicit Training(Strategy& strategy, int64_t width = 6)
      : strategy_(strategy),
        model_(strategy.make_module([width] {
          return torch::nn::Sequential(torch::nn::Linear(3, width), torch::nn::BatchNorm1d(width),
                                       torch::nn::Dropout(0.3), torch::nn::Linear(width, 1));
        })),
        adam_(strategy.make_optimizer(model_, torch::optim::AdamWOptions(1e-2))),
        average_(strategy.make_moving_average(model_)),
        seen_(
            strategy.make_variable(torch::zeros({}, torch::kLong), {.name = "seen",
                                                                    .synchronization = VariableSynchronization::kOnRead,
                                                                    .aggregation = VariableAggregation::kSum})),
        samples_(data::from_tensors(torch::arange(66).to(torch::kFloat).view({22, 3}) / 66,
                                    torch::arange(22).to(torch::kFloat) / 22)),
        data_(strategy.distribute(samples_, {.global_batch = 5, .shuffle = true, .name = "train"})),
        other_(strategy.distribute(samples_, {.global_batch = 4, .shuffle = true})),
        checkpoint_(strategy) {
    checkpoint_.track("other", other_);
    checkpoint_.track(
        "best",
        [this] {
          return nlohmann::json{{"loss", best}, {"steps", total_}};
        },
        [this](const nlohmann::json& json) {
          best = json.at("loss").get<double>();
          total_ = json.at("steps").get<int64_t>();
        });
  }

  void steps(int count) {
    data_.seek(data_.cursor());  // goes on behind the last batch
    for (int64_t epoch = data_.cursor().epoch; count > 0; ++epoch) {
      for (const auto& batch : data_.epoch(epoch)) {
        const auto losses = strategy_.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
          if (part.size() > 1) {
            const auto loss =
                ctx.scale_loss((model_(ctx)->forward(part.input).squeeze(1) - part.target).square().mean());
            loss.backward();
            adam_.step(ctx);
            average_.update(ctx);
            seen_.assign_add(ctx, torch::tensor(part.size()));
            return loss.detach();
          }
          auto loss = torch::zeros({});
          for (const auto& parameter : model_(ctx)->parameters()) loss = loss + 0 * parameter.sum();
          loss = ctx.scale_loss(loss);
          loss.backward();
          adam_.step(ctx);
          average_.update(ctx);
          return loss.detach();
        });
        best = std::min(best, strategy_.reduce(Reduction::kSum, losses).item<double>());
        ++total_;
        data::Cursor place = other_.cursor();
        place.position = total_ % 23;
        other_.seek(place);
        adam_.set_learning_rate(0.01 / static_cast<double>(1 + total_));
        if (--count == 0) break;
      }
    }
  }

  /// Of the strategy's items, and of what was tracked.
  std::string digest() const {
    return digest_of(strategy_) + data::to_json(other_.cursor()) + std::to_string(best) + std::to_string(total_);
  }

  Checkpoint& checkpoint() { return checkpoint_; }
  Strategy& strategy() { return strategy_; }
  const Replicated<torch::nn::Sequential>& model() const { return model_; }
  const Variable& seen() const { return seen_; }

  double best = 1e9;

 private:
  Strategy& strategy_;
  Replicated<torch::nn::Sequential> model_;
  Optimizer adam_;
  MovingAverage average_;
  Variable seen_;
  Dataset samples_;
  DistributedDataset data_, other_;
  Checkpoint checkpoint_;
  int64_t total_ = 0;
};

/// With a strategy of its own.
struct OneTraining {
  explicit OneTraining(int64_t replicas = 3, int num_lanes = 1, uint64_t seed = 5, Copies copies = Copies::kPerMemory)
      : strategy({.devices = lanes(num_lanes), .replicas = replicas, .copies = copies, .seed = seed}),
        training(strategy) {}
  MirroredStrategy strategy;
  Training training;
};

}  // namespace lockstep::testing
