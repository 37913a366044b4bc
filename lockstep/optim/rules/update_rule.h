// Update rules of the program's own, beside those of torch::optim.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lockstep {

/// A value that an optimizer keeps for each element of a variable.
struct SlotSpec {
  std::string name;  // in messages and checkpoints; not "step"
  double initial = 0.0;
};

/// What an update of one variable, or of a part of it, is given. All tensors have the same shape and dtype: the
/// variable's; float32 for half precision, which is rounded once, when it is stored; of a complex variable the real
/// numbers that it is made of. They hold until update() returns.
struct RuleInput {
  at::Tensor weights;             // written in place
  std::vector<at::Tensor> slots;  // in the order of UpdateRule::slots(), written in place
  at::Tensor gradient;            // the sum over all replicas, scaled and clipped; the rule may overwrite it
  int64_t step = 1;               // how often the variable was updated, this update included
  double learning_rate = 0;       // of the variable's group
};

/// How an optimizer's weights and slots follow from its gradients. A rule is a function of its input: it keeps nothing
/// between calls and draws nothing at random, so that bits do not depend on who calls it. Where several workers compute
/// the same values, the step compares them, and a difference is a DivergenceError (LS-RULE-DIFFERS). The library calls
/// it without recording gradients, on one intra-op thread, for several variables or parts at once on several lanes.
///
/// What update() throws is thrown from Optimizer::step on every replica, and the step has applied nothing. A rule may
/// not call the library.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  /// In messages and checkpoints. A checkpoint is restored into a rule of the same name alone.
  virtual std::string name() const = 0;
  virtual std::vector<SlotSpec> slots() const { return {}; }
  /// Writes weights and slots in place.
  virtual void update(const RuleInput& in) const = 0;
  /// Whether each element's new values follow from that element alone. Then update() is given parts of variables, with
  /// one dimension, which are cut alike on every placement. Otherwise it is given whole variables in their shape (of a
  /// complex one with a last dimension of 2).
  virtual bool elementwise() const { return true; }
  /// Its numbers as text, such as "beta = 0.9, weight_decay = 0": for messages, and to find workers that were made with
  /// other ones.
  virtual std::string options() const { return {}; }
};

/// What make_optimizer takes for a rule of the program's own. A UsageError for a rule that is null, that has no name,
/// or whose slots are named twice, "step", or with a slash.
struct UpdateRuleOptions {
  std::shared_ptr<const UpdateRule> rule;
  double learning_rate = 1e-3;
};

}  // namespace lockstep
