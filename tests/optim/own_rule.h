// Rules of tests, and a step with a gradient of one's choice.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"

namespace lockstep::testing {

/// What `fn` is given, for rules of one test.
class Calls final : public UpdateRule {
 public:
  using Fn = std::function<void(const RuleInput&)>;
  explicit Calls(Fn fn, bool elementwise = true, std::string name = "Calls")
      : fn_(std::move(fn)), elementwise_(elementwise), name_(std::move(name)) {}
  std::string name() const override { return name_; }
  std::vector<SlotSpec> slots() const override { return {{.name = "seen"}}; }
  bool elementwise() const override { return elementwise_; }
  void update(const RuleInput& in) const override { fn_(in); }

 private:
  const Fn fn_;
  const bool elementwise_;
  const std::string name_;
};

inline UpdateRuleOptions calling(Calls::Fn fn, bool elementwise = true, std::string name = "Calls") {
  return {.rule = std::make_shared<Calls>(std::move(fn), elementwise, std::move(name)), .learning_rate = 0.5};
}

/// Gives each replica the gradient `gradient / num_replicas` of `variable`, and steps.
inline void step(Strategy& strategy, const Variable& variable, const Optimizer& optimizer,
                 const torch::Tensor& gradient, StepOptions options = {}) {
  options.loss_scaled_by_hand = true;
  strategy.run([&](ReplicaContext& ctx) {
    variable.value(ctx).mutable_grad() = gradient / static_cast<double>(ctx.num_replicas());
    optimizer.step(ctx, options);
  });
}

}  // namespace lockstep::testing
