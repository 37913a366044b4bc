// For tests of how gradients travel: a layer whose weight's gradient can be kept as factors, and what describe() says
// of a variable.
#pragma once

#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "lockstep/lockstep.h"

namespace lockstep::testing {

/// A matrix whose gradient can be kept as factors, and a vector.
struct Layer {
  static constexpr int64_t kRows = 128;
  static constexpr int64_t kColumns = 64;

  explicit Layer(Strategy& strategy)
      : weight(strategy.make_variable(torch::arange(kRows * kColumns).to(torch::kFloat).sin().view({kRows, kColumns}),
                                      {.name = "weight"})),
        bias(strategy.make_variable(torch::arange(kRows).to(torch::kFloat).cos(), {.name = "bias"})),
        optimizer(strategy.make_optimizer({weight, bias}, torch::optim::AdamWOptions(0.01))) {}

  void step(Strategy& strategy) const {
    strategy.run([&](ReplicaContext& ctx) {
      const auto x = torch::arange(2 * kColumns).add(100 * ctx.replica_id() + ctx.step()).to(torch::kFloat).cos();
      torch::linear(x.view({2, kColumns}), weight.value(ctx), bias.value(ctx)).pow(2).sum().backward();
      optimizer.step(ctx, {.clip_global_norm = 1.0});
    });
  }
  std::vector<torch::Tensor> values() const {
    std::vector<torch::Tensor> all{weight.read(), bias.read()};
    for (const Variable& slot : optimizer.slots()) all.push_back(slot.read());
    return all;
  }

  Variable weight;
  Variable bias;
  Optimizer optimizer;
};

/// What describe() has in the line of a variable, with two spaces between columns of any width.
inline std::string row_of(const Strategy& strategy, const std::string& variable) {
  const std::string text = strategy.describe();
  const std::size_t begin = text.find("\n" + variable + " ") + 1;
  std::string row = text.substr(begin, text.find('\n', begin) - begin);
  for (std::size_t at = row.find("   "); at != std::string::npos; at = row.find("   ")) row.erase(at, 1);
  return row;
}

}  // namespace lockstep::testing
