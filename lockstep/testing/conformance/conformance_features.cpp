// The conformance checks of features: programs with clipping, groups of parameters, accumulation, averages, metrics,
// SyncBatchNorm, and an optimizer whose state is loaded.
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/layers/sync_batch_norm.h"
#include "lockstep/optim/rules/rules.h"
#include "lockstep/strategy/metrics.h"
#include "lockstep/testing/conformance/conformance_checks.h"

namespace lockstep::internal::inline testing {

namespace {

using lockstep::testing::TrainingProgram;
using torch::optim::SGDOptions;

/// What a program uses.
struct Features {
  bool clip = false;        // of gradients that are far too large
  bool groups = false;      // weights and biases have different options
  bool own_rules = false;   // weights and biases have rules of the program's own, and a schedule
  bool accumulate = false;  // two micro-batches in a step
  bool averages = false;
  bool metrics = false;
  bool sync_norm = false;
};

class FeatureNet : public torch::nn::Module {
 public:
  explicit FeatureNet(bool norm) {
    if (norm) norm_ = register_module("norm", SyncBatchNorm(6));
    hidden_ = register_module("hidden", torch::nn::Linear(6, 10));
    out_ = register_module("out", torch::nn::Linear(10, 1));
  }
  /// The squared error of each sample.
  at::Tensor errors(const at::Tensor& input, const at::Tensor& target) {
    const at::Tensor x = norm_ ? norm_->forward(input) : input;
    return (out_->forward(at::tanh(hidden_->forward(x))) - target).pow(2).flatten();
  }

 private:
  SyncBatchNorm norm_{nullptr};
  torch::nn::Linear hidden_{nullptr};
  torch::nn::Linear out_{nullptr};
};

Dataset samples() {
  const at::Tensor input = at::sin(at::arange(48 * 6, at::kDouble).view({48, 6}) * 12.9898 + 0.25);
  return lockstep::data::from_tensors(input.to(at::kFloat), input.sum(1, /*keepdim=*/true).mul(0.5).to(at::kFloat));
}

/// Weights are trained by `of_weights`, and biases by `of_biases`.
template <class Options>
Optimizer optimizer_of_groups(Strategy& strategy, const Replicated<std::shared_ptr<FeatureNet>>& model,
                              const Options& of_weights, const Options& of_biases) {
  ParameterGroup<Options> weights{.variables = {}, .options = of_weights};
  ParameterGroup<Options> biases{};
  for (const Variable& variable : model.variables()) {
    if (variable.trainable()) (variable.name().ends_with("weight") ? weights : biases).variables.push_back(variable);
  }
  return strategy.make_optimizer(std::vector<ParameterGroup<Options>>{weights, biases}, of_biases);
}

Optimizer optimizer_of(Strategy& strategy, const Replicated<std::shared_ptr<FeatureNet>>& model, const Features& use) {
  if (use.groups) {
    return optimizer_of_groups(strategy, model, SGDOptions(0.02).momentum(0.9).weight_decay(0.01), SGDOptions(0.2));
  }
  if (!use.own_rules) return strategy.make_optimizer(model, SGDOptions(0.05).momentum(0.9));
  // One rule takes whole variables, the other parts of them.
  const Optimizer optimizer = optimizer_of_groups(strategy, model, UpdateRuleOptions{.rule = rules::lamb()},
                                                  UpdateRuleOptions{.rule = rules::nadam({.epsilon = 1e-3})});
  optimizer.set_schedule(schedules::cosine(0.02, 10, {.end = 0.002, .warm_up = 2}));
  return optimizer;
}

/// Two epochs of six steps; with SyncBatchNorm, of one step each, so that no replica is without samples.
TrainingProgram program(Features use) {
  return [use](Strategy& strategy, const std::function<void()>& observe) {
    const auto model = strategy.make_module([&] { return std::make_shared<FeatureNet>(use.sync_norm); });
    const Optimizer optimizer = optimizer_of(strategy, model, use);
    std::optional<MovingAverage> average;
    if (use.averages) average = strategy.make_moving_average(model, {.decay = 0.5});
    std::optional<metrics::Mean> mean;
    if (use.metrics) mean.emplace(strategy, "mean");
    const auto data = strategy.distribute(samples(), {.global_batch = use.sync_norm ? 48 : 8, .shuffle = true});
    StepOptions options;
    if (use.clip) options.clip_global_norm = 0.5;
    const int64_t parts = use.accumulate ? 2 : 1;
    observe();
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      for (const auto& batch : data.epoch(epoch)) {
        strategy.run(batch, [&](ReplicaContext& ctx, const Batch& part) {
          for (int64_t i = 0; i < parts; ++i) {
            const int64_t begin = part.size() * i / parts;
            const int64_t length = part.size() * (i + 1) / parts - begin;
            const at::Tensor errors =
                model(ctx)->errors(part.input.narrow(0, begin, length), part.target.narrow(0, begin, length));
            ctx.scale_loss(errors.mean() * (use.clip ? 1e6 : 1), length, part.global_size).backward();
            if (mean) mean->update(ctx, errors.detach());
          }
          optimizer.step(ctx, options);
          if (average) average->update(ctx);
        });
        observe();
      }
    }
  };
}

// Averages need parameters that all replicas share, so strategies that train locally have none.
void all_features(const Shape& shape) {
  const bool shared = shape.conformance->one_gradient_rule;
  expect_same_bits(shape,
                   program({.clip = true, .groups = true, .accumulate = true, .averages = shared, .metrics = true}));
  expect_same_bits(shape, program({.metrics = true, .sync_norm = true}));
  expect_same_bits(shape, program({.clip = true, .own_rules = true}));
}

void clipping(const Shape& shape) { expect_like_one_device(shape, program({.clip = true})); }
void groups(const Shape& shape) { expect_like_one_device(shape, program({.groups = true})); }
void own_rules(const Shape& shape) { expect_like_one_device(shape, program({.own_rules = true})); }
void accumulation(const Shape& shape) { expect_like_one_device(shape, program({.accumulate = true})); }
void averages(const Shape& shape) { expect_like_one_device(shape, program({.averages = true})); }
void metrics_add_up(const Shape& shape) { expect_like_one_device(shape, program({.metrics = true})); }
void sync_norm(const Shape& shape) { expect_like_one_device(shape, program({.sync_norm = true})); }

// After three steps the state is loaded into a new strategy; three steps of both then give the same bits.
void state_is_loaded(const Shape& shape) {
  struct Run {
    explicit Run(const Shape& of) : strategy(of.make(of.lanes)) {}
    void train(int steps) {
      const auto data = strategy->distribute(samples(), {.global_batch = 8});
      for (const auto& batch : data.epoch(0)) {
        if (steps-- == 0) return;
        strategy->run(batch, [&](ReplicaContext& ctx, const Batch& part) {
          ctx.scale_loss(model(ctx)->errors(part.input, part.target).mean()).backward();
          optimizer.step(ctx);
        });
      }
    }
    std::unique_ptr<Strategy> strategy;
    Replicated<std::shared_ptr<FeatureNet>> model =
        strategy->make_module([] { return std::make_shared<FeatureNet>(false); });
    Optimizer optimizer = strategy->make_optimizer(model, torch::optim::AdamWOptions(0.01));
  };
  const auto expect_equal_states = [](const char* what, const std::map<std::string, at::Tensor>& found,
                                      const std::map<std::string, at::Tensor>& expected) {
    expect_equal(fmt::format("the number of entries of {}", what), found.size(), expected.size());
    for (const auto& [name, value] : expected) {
      const auto entry = found.find(name);
      expect(entry != found.end(), fmt::format("{} has no '{}'", what, name));
      expect_bits(fmt::format("'{}' of {}", name, what), entry->second, value);
    }
  };
  Run first(shape);
  first.train(3);
  Run second(shape);
  second.model.load(first.model.state());
  second.optimizer.load(first.optimizer.state());
  expect_equal_states("an optimizer's state() after load()", second.optimizer.state(), first.optimizer.state());
  first.train(3);
  second.train(3);
  expect_equal_states("a module's state() after load() and three steps", second.model.state(), first.model.state());
  expect_equal_states("an optimizer's state() after load() and three steps", second.optimizer.state(),
                      first.optimizer.state());
}

/// Parameters of several sizes and names; the loss is their sum.
class Parameters : public torch::nn::Module {
 public:
  Parameters() {
    for (const char* name : {"weight", "bias", "embedding"}) {
      for (const int64_t size : {1, 7, 1025, 5003, 70000}) {
        register_parameter(std::string(name) + "_" + std::to_string(size), at::ones({size}));
      }
    }
  }
  at::Tensor sum() {
    at::Tensor total = at::zeros({});
    for (const at::Tensor& parameter : parameters()) total = total + parameter.sum();
    return total;
  }
};

void any_parameter(const Shape& shape) {
  const auto strategy = shape.make(shape.lanes);
  const auto model = strategy->make_module([] { return std::make_shared<Parameters>(); });
  const auto optimizer = strategy->make_optimizer(model, SGDOptions(0.5));
  strategy->run([&](ReplicaContext& ctx) {
    (model(ctx)->sum() * static_cast<double>(ctx.replica_id() + 1)).backward();
    optimizer.step(ctx, {.loss_scaled_by_hand = true});
  });
  const double sum = static_cast<double>(shape.replicas * (shape.replicas + 1)) / 2;
  const auto seen = strategy->run([&](ReplicaContext& ctx) {
    std::map<std::string, at::Tensor> values;
    for (const auto& parameter : model(ctx)->named_parameters())
      values[parameter.key()] = parameter.value().detach().clone();
    return values;
  });
  for (const int64_t r : local_ids(*strategy)) {
    for (const auto& [name, value] : seen[r]) {
      expect_tensor(
          fmt::format("replica {}'s parameter '{}', whose replicas have the gradients 1, 2, ..., after a step "
                      "of SGD(0.5),",
                      r, name),
          value, at::full_like(value, 1 - 0.5 * sum));
    }
  }
}

constexpr const char* kFunctions =
    "look for something that does not depend on its arguments alone in the strategy's Topology, Placement and Reducer, "
    "and for what "
    "they make of some variables alone, such as metrics, averages and buffers";
constexpr const char* kGradients =
    "look at the strategy's Reducer and Placement: gradients of any size and number are added, each replica's once, "
    "and every variable is kept alike, averages and metrics too";

constexpr std::array<ShapeCheck, 1> kFeaturesChecks{{
    {"AllFeaturesGiveTheSameBitsEachTimeAndOnAnyLanes", all_features, kFunctions},
}};
constexpr std::array<ShapeCheck, 9> kOneDeviceChecks{{
    {"ClippingIsOneDevices", clipping, kGradients},
    {"ParameterGroupsAreOneDevices", groups, kGradients},
    {"RulesOfTheProgramAreOneDevices", own_rules, kGradients},
    {"AccumulationIsOneDevices", accumulation, kGradients},
    {"MovingAveragesAreOneDevices", averages, kGradients},
    {"MetricsAreOneDevices", metrics_add_up, kGradients},
    {"SyncBatchNormIsOneDevices", sync_norm, kGradients},
    {"OptimizerStateIsLoaded", state_is_loaded, kFunctions},
    {"ParametersOfAnySizeAndNameTrainAlike", any_parameter, kGradients},
}};

}  // namespace

std::span<const ShapeCheck> features_checks() { return kFeaturesChecks; }
std::span<const ShapeCheck> one_device_features_checks() { return kOneDeviceChecks; }

}  // namespace lockstep::internal::testing
