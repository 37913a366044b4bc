// The optimizer of all replicas: adds their gradients and applies one update to the variables that they share.
#pragma once

#include <ATen/core/TensorBody.h>

#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/variable/variable.h"

namespace lockstep {

class ReplicaContext;

namespace internal {
class OptimizerState;
}

/// Variables with options of their own, for make_optimizer, which hold as a whole: unlike torch::optim of some versions
/// nothing is merged with the optimizer's default ones. Those hold for a group without options.
template <class Options>
struct ParameterGroup {
  std::vector<Variable> variables;
  std::optional<Options> options = std::nullopt;
};

struct StepOptions {
  /// Scales the summed gradient down to this norm over all variables of the optimizer, where it is larger: by the
  /// factor of torch::nn::utils::clip_grad_norm_. So a norm that is NaN makes every gradient NaN, and an infinite one
  /// makes all finite gradients zero; check_finite refuses such a step instead.
  std::optional<double> clip_global_norm = std::nullopt;
  /// Looks at every gradient, and at the sum, before anything is written: where an element is infinite or NaN, the step
  /// is a NonFiniteError that names the variables and replicas, and nothing is applied. Costs one more reading of the
  /// gradients.
  bool check_finite = false;
  /// Says that the loss has its weight although it never went through scale_loss, so that this is no finding.
  bool loss_scaled_by_hand = false;
  /// Says that gradients are changed between backward and step on purpose, so that this is no finding.
  bool gradients_changed_on_purpose = false;
};

/// What make_optimizer may be told beyond the rule's own options.
struct OptimizerOptions {
  /// How messages, and the slots of a variable's second optimizer, are named. Empty: "optimizer", "optimizer_1", ... in
  /// order of creation. A UsageError where a living optimizer has the name.
  std::string name = "";
};

struct StepInfo {
  /// Of the summed gradient, before clipping. As in LibTorch squares are taken in the variable's type, half precision
  /// in float32: of float32 gradients above 1.8e19 it is infinite.
  double global_norm = 0;
  bool applied = false;  // whether the variables were updated; false where no variable had a gradient
};

/// A handle; copies mean the same optimizer, which lives as long as any of them, also beyond its strategy.
///
/// The update is torch::optim's of the same options, applied to the sum of the replicas' gradients: each replica's loss
/// carries its weight, see ReplicaContext::scale_loss. A variable of which some replica has no gradient counts as zero
/// there; one of which none has is left untouched, slots and step count included. Where it requires one, the log names
/// it, once. See docs/training.md.
class Optimizer {
 public:
  /// An empty handle, for members of classes: until it is given a value, every use is a UsageError.
  Optimizer() = default;

  /// Meets the other replicas, which call it with equal options; inside a step, on the replica's thread. Consumes the
  /// gradients of its variables: backwards before it accumulate, after it each .grad() is undefined. Sparse gradients
  /// are a UsageError. A DivergenceError names a variable that something else wrote; see docs/variables.md.
  /// A step that throws before its update began has applied nothing.
  StepInfo step(const ReplicaContext& context, StepOptions options = {}) const;
  /// Lets go of this replica's gradients of the optimizer's variables, so that the next step has none that another
  /// loss left there. Does not meet. Inside a step, on the replica's thread.
  void zero_grad(const ReplicaContext& context) const;

  /// Its name among the strategy's optimizers: see OptimizerOptions.
  const std::string& name() const;

  /// Reads one group's learning rate. Outside of steps, like the setters.
  template <std::integral Group>
  double learning_rate(Group group) const {
    return read_learning_rate(static_cast<int64_t>(group));
  }
  double learning_rate() const { return read_learning_rate(0); }
  /// Sets the learning rate of all groups, from the next step on: finite and not negative, otherwise a UsageError.
  void set_learning_rate(double value) const;
  /// Sets one group's.
  void set_learning_rate(double value, int64_t group) const;

  /// What the optimizer keeps for its variables, named "<variable>/<slot>" with torch::optim's names of slots. Where
  /// another living optimizer was made over the variable before, "<variable>/<name>/<slot>", with this optimizer's
  /// name.
  const std::vector<Variable>& slots() const;
  /// Copies of all slots as "<variable>/<slot>", whatever the optimizer's name; of how often each variable was updated
  /// as "<variable>/step", an int64 of no dimensions; and of each group's learning rate as "learning_rate/<group>", a
  /// double of no dimensions. Of variables that replicas train locally the slots' means, so that a resume from them is
  /// not the same bits. Outside of steps.
  std::map<std::string, at::Tensor> state() const;
  /// Sets what state() gave, of an optimizer over variables of the same names and shapes: all of it, or, with a
  /// UsageError that lists everything missing, unexpected or unfit, nothing. A state without any learning rate, as
  /// earlier versions saved, leaves the rates as they are. In a merge function of a run that fails it is undone, but
  /// for what a completed step has changed since. Outside of steps.
  void load(const std::map<std::string, at::Tensor>& state) const;

  /// For the library's own use.
  explicit Optimizer(std::shared_ptr<internal::OptimizerState> state) : state_(std::move(state)) {}

 private:
  double read_learning_rate(int64_t group) const;
  internal::OptimizerState& here() const;

  std::shared_ptr<internal::OptimizerState> state_;
};

}  // namespace lockstep
