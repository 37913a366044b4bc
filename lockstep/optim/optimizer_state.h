// What stands behind an Optimizer: its variables with their slots, what it counts, and its step.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/optimizer_counts.h"
#include "lockstep/optim/optimizer_slots.h"
#include "lockstep/optim/optimizer_step.h"
#include "lockstep/optim/saved_state.h"
#include "lockstep/variable/placement.h"

namespace lockstep::internal::inline optim {

class OptimizerState {
 public:
  /// Throws the UsageErrors of variables_of(), and one (LS-UPDATE-FORM) where slots are to be sliced and cannot be.
  /// `has_optimizer` says whether another living optimizer updates a variable: then the names of the variable's slots
  /// have this optimizer's name in them.
  OptimizerState(OptimizerSetup setup, std::vector<RuleGroup> groups, const Placement& placement,
                 FunctionRef<bool(const VariableState&)> has_optimizer);

  // The contracts are those of Optimizer's members.

  StepInfo step(const ReplicaContext& context, const StepOptions& options, const std::source_location& place) {
    return step_->step(context, options, place);
  }
  void zero_grad(const ReplicaContext& context) { step_->zero_grad(context); }
  const std::string& name() const { return name_; }
  const std::vector<Variable>& slots() const { return slots_; }
  std::map<std::string, at::Tensor> state() const;
  void load(const std::map<std::string, at::Tensor>& state);
  void gather_slots();

  OptimizerCounts& counts() { return *counts_; }
  const OptimizerCounts& counts() const { return *counts_; }
  const std::shared_ptr<ReplicaGroup>& group() const { return group_; }
  /// In the order of the groups.
  const std::vector<std::shared_ptr<VariableState>>& variables() const { return variables_; }
  /// Where slots are sliced; otherwise null.
  SlicedSlots* sliced_slots() { return step_->sliced_slots(); }
  /// Whether gradients that are there now will probably be dropped and not used: zero_grad came before the last step,
  /// and not since. Outside of steps.
  bool drops_next() const { return step_->drops_next(); }
  /// How several workers update the variables, for describe(); empty where nothing is to be said.
  std::string form() const { return step_->form(); }
  /// How the last step brought the gradients of variable i together. Empty with one worker, and before the first step.
  /// Outside of steps.
  FormOfVariable form_of(std::size_t i) const { return step_->form_of(i); }

  // Step counts and settings that load() and setters changed in a run, from a merge function. Not while replicas run.

  /// After a run that failed: rolls them back, except for the counts of variables that a completed step has updated
  /// since. Keeps nothing of the run's gradients.
  void undo_run() {
    step_->forget_run();
    counts_->undo_run();
  }
  /// After a run that succeeded.
  void end_run() { counts_->end_run(); }

 private:
  const std::shared_ptr<ReplicaGroup> group_;
  const std::string name_;
  const std::vector<std::shared_ptr<VariableState>> variables_;  // of all groups, in order
  std::vector<Variable> slots_;
  std::vector<NamedSlot> named_slots_;  // the same, with their names in state()
  std::unique_ptr<OptimizerCounts> counts_;
  std::unique_ptr<OptimizerStep> step_;
};

}  // namespace lockstep::internal::optim
