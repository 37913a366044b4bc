// The optimizer of all replicas: adds their gradients and applies one update to the variables that they share.
#pragma once

#include <ATen/core/TensorBody.h>

#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/optim/rules/schedule.h"
#include "lockstep/variable/variable.h"

namespace lockstep {

class ReplicaContext;

namespace internal::inline optim {
class OptimizerState;
struct RuleSettings;
class GroupRule;
}  // namespace internal::optim

/// Variables with their own options, for make_optimizer. The options hold as a whole: some versions of torch::optim
/// take options that look untouched from the optimizer's defaults, this library does not. The defaults hold for a group
/// without options.
template <class Options>
struct ParameterGroup {
  std::vector<Variable> variables;
  std::optional<Options> options = std::nullopt;
};

struct StepOptions {
  /// Where the summed gradient has a larger norm, over all variables of the optimizer, scales it down to this norm by
  /// the factor of torch::nn::utils::clip_grad_norm_. So a norm that is NaN makes every gradient NaN, and an infinite
  /// norm makes all finite gradients zero; check_finite refuses such a step instead.
  std::optional<double> clip_global_norm = std::nullopt;
  /// Checks every gradient, and the sum, before anything is written. Where an element is infinite or NaN, the step
  /// throws a NonFiniteError that names the variables, replicas and workers, on all of them, and applies nothing. The
  /// check reads the gradients once more.
  bool check_finite = false;
  /// Says that the losses have their weight although they never went through scale_loss, or several did. Then this is
  /// no finding.
  bool loss_scaled_by_hand = false;
  /// Says that gradients are changed between backward and step on purpose. Then this is no finding.
  bool gradients_changed_on_purpose = false;
  /// Checks as check_finite does. Where an element is infinite or NaN, skips the update on all replicas and does not
  /// throw, also where check_finite is set: nothing is applied, step counts stay, the gradients are consumed,
  /// StepInfo::applied is false, global_norm is the norm that was found, which may be infinite or NaN, and a finding
  /// names variables, replicas and workers.
  bool skip_non_finite = false;
  /// Limits each element of the summed gradient to [-clip_value, clip_value], as torch::nn::utils::clip_grad_value_
  /// does. NaN stays NaN; of a complex number both parts are limited. A UsageError together with clip_global_norm.
  std::optional<double> clip_value = std::nullopt;
};

/// What make_optimizer may be told beyond the rule's own options.
struct OptimizerOptions {
  /// The optimizer's name in messages, and in the names of a variable's slots where the variable has another optimizer
  /// already. Empty: "optimizer", "optimizer_1", ... in order of creation. A UsageError where a living optimizer has
  /// the name.
  std::string name = "";
};

struct StepInfo {
  /// The norm of the summed gradient, before clipping. As in LibTorch, squares are computed in the variable's dtype
  /// (for half precision in float32), so the norm of float32 gradients above 1.8e19 is infinite.
  double global_norm = 0;
  /// Whether the variables were updated: false where no variable had a gradient, and where the step was skipped.
  bool applied = false;
};

/// A handle. Its copies mean the same optimizer, which lives as long as any copy and may outlive its strategy.
///
/// The update is that of torch::optim with the same options, applied to the sum of the replicas' gradients; each
/// replica's loss carries its weight, see ReplicaContext::scale_loss. Where only some replicas have a gradient of a
/// variable, zero counts for the others. Where no replica has one, the variable is left unchanged, slots and step count
/// included. In both cases the log names the variable, once, if it requires a gradient. See docs/training.md.
class Optimizer {
 public:
  /// An empty handle, for members of classes: until it is given a value, every use is a UsageError.
  Optimizer() = default;

  /// Meets the other replicas, which call it with equal options; inside a step, on the replica's thread. Consumes the
  /// gradients of its variables: backwards before it accumulate, and after it each .grad() is undefined. Of a variable
  /// whose gradients are all sparse it updates the rows that any replica has, by SGD, Adagrad or, for AdamOptions, the
  /// rule of torch.optim.SparseAdam; other rules throw a UsageError for sparse gradients. A DivergenceError names a
  /// variable with a foreign write; see docs/variables.md. A step that throws before its update began has applied
  /// nothing.
  StepInfo step(const ReplicaContext& context, StepOptions options = {},
                const std::source_location& place = std::source_location::current()) const;
  /// Drops this replica's gradients of the optimizer's variables, so that the next step has none that another loss left
  /// there. Does not meet. Inside a step, on the replica's thread.
  void zero_grad(const ReplicaContext& context) const;

  /// Its name among the strategy's optimizers: see OptimizerOptions.
  const std::string& name() const;

  /// Reads one group's learning rate, which is that of the next step; where a schedule has none for it, the last one's,
  /// and the next step throws. Outside of steps, like the setters.
  template <std::integral Group>
  double learning_rate(Group group) const {
    return read_learning_rate(static_cast<int64_t>(group));
  }
  double learning_rate() const { return read_learning_rate(0); }
  /// Sets the learning rate of all groups, from the next step on: finite and not negative, otherwise a UsageError.
  void set_learning_rate(double value) const;
  /// Sets one group's.
  void set_learning_rate(double value, int64_t group) const;
  /// The learning rate of all groups is from now on schedule(k), where k is the number of steps that the optimizer has
  /// applied: a step that failed or was skipped does not count. The later call of set_schedule and set_learning_rate
  /// holds. A schedule is no part of state(), which says only that there is one: a program that resumes sets it again,
  /// before or after the load, and k is that of the state. Where it does not, the next step is a finding
  /// (LS-SCHEDULE-MISSING). A UsageError for an empty schedule, and where it gives a rate that is negative or not
  /// finite; of a later step, from that step.
  void set_schedule(const Schedule& schedule) const;
  void set_schedule(const Schedule& schedule, int64_t group) const;
  /// The groups that it was made with; 1 where it was made without groups. Any time.
  int64_t num_groups() const;

  // Options of torch::optim that can be set between steps, as the learning rate: of all groups, or of one. They hold
  // from the next step on, are part of state(), and a run that fails undoes what a merge function set in it.

  /// 0 where the rule has none (Adam, AdamW, Adagrad).
  double momentum(int64_t group = 0) const;
  /// Of SGD and RMSprop that were made with a momentum above 0; a UsageError for other rules, and for a number that is
  /// negative or not finite. With 0 the buffer stays as it is; SGD with dampening refuses it.
  void set_momentum(double value) const;
  void set_momentum(double value, int64_t group) const;
  double weight_decay(int64_t group = 0) const;
  /// A UsageError for a number that is negative or not finite.
  void set_weight_decay(double value) const;
  void set_weight_decay(double value, int64_t group) const;

  /// What the optimizer keeps for its variables, named "<variable>/<slot>" with torch::optim's names of slots. Where
  /// another living optimizer was made over the variable before, "<variable>/<name>/<slot>", with this optimizer's
  /// name.
  /// With Slots::kSliced they can be read after gather_slots() only (LS-SLOT-SLICED).
  const std::vector<Variable>& slots() const;
  /// A call of all workers, for slots of which each worker has only its slices (Slots::kSliced): makes them whole, so
  /// that they can be read, until the next step of this optimizer, or a restore. They take the memory of whole slots
  /// meanwhile. Does nothing for other slots. Outside of steps.
  void gather_slots() const;
  /// Copies of all slots as "<variable>/<slot>", whatever the optimizer's name; each variable's number of updates as
  /// "<variable>/step", an int64 without dimensions; each group's learning rate as "learning_rate/<group>", a double
  /// without dimensions, and its "weight_decay/<group>" and "momentum/<group>", where these are not what the options
  /// say from which it was made; "has_schedule/<group>", true as a bool, where the group has a schedule; of a rule of
  /// the program's own its name, as the bytes of "rule/<group>"; and where no variable was in all steps, "extra_steps",
  /// an int64: how many more steps were applied than the variable that was updated most often has. Of variables that
  /// replicas train locally it has the means of the slots, so that a resume from them does not give the same bits. A
  /// call of all workers; it gathers slots. Outside of steps.
  std::map<std::string, at::Tensor> state() const;
  /// Sets what state() of an optimizer over variables of the same names and shapes gave: all of it; or nothing, with a
  /// UsageError that lists everything missing, unexpected or unfit; a state of a rule of another name is refused, where
  /// either is the program's own. A state without any learning rate, as earlier versions saved, leaves the rates as
  /// they are. A weight decay or momentum that is not in it becomes that of the options. A schedule that a group has
  /// stays, and gives the rate of the step at which the state is, whatever rate the state has. What a merge function
  /// loads in a run that fails is rolled back, except for what a completed step has changed since. Outside of steps.
  void load(const std::map<std::string, at::Tensor>& state) const;

  /// For the library's own use.
  explicit Optimizer(std::shared_ptr<internal::OptimizerState> state) : state_(std::move(state)) {}
  /// The same; a UsageError of an empty handle.
  internal::OptimizerState& shared_state() const { return here(); }

 private:
  double read_learning_rate(int64_t group) const;
  /// Where `schedule` is given, it becomes the groups' schedule.
  void set_in_groups(const char* call, std::optional<int64_t> group,
                     internal::FunctionRef<internal::RuleSettings(const internal::GroupRule&)> changed,
                     const Schedule* schedule = nullptr) const;
  void set_schedule_of(const Schedule& schedule, std::optional<int64_t> group) const;
  internal::OptimizerState& here() const;

  std::shared_ptr<internal::OptimizerState> state_;
};

}  // namespace lockstep
