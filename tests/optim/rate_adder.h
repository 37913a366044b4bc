// For tests of schedules: a weight that adds up the rates of the steps.
#pragma once

#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "lockstep/lockstep.h"

namespace lockstep::testing {

/// One weight of value 0 whose gradient is -1, so that SGD adds each step's rate to it.
struct RateAdder {
  explicit RateAdder(Strategy& of)
      : strategy(of),
        weight(of.make_variable(torch::zeros({1}, torch::kDouble), {.name = "w"})),
        optimizer(of.make_optimizer(std::vector<Variable>{weight}, torch::optim::SGDOptions(0.25))) {}
  void step(const StepOptions& options = {}, double gradient = -1) {
    strategy.run([&](ReplicaContext& ctx) {
      (weight.value(ctx).sum() * (gradient / static_cast<double>(ctx.num_replicas()))).backward();
      optimizer.step(ctx, options);
    });
  }
  double value() const { return weight.read().item<double>(); }

  Strategy& strategy;
  Variable weight;
  Optimizer optimizer;
};

/// 1, 10, 100, ...
inline double power_of_10(int64_t k) { return std::pow(10.0, static_cast<double>(k)); }

}  // namespace lockstep::testing
