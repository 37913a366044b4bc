// All variables and modules of one strategy: it makes variables, keeps names unique, and checks each one in a step.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <unordered_set>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/variable/kinds/component_table.h"
#include "lockstep/variable/kinds/derived_states.h"
#include "lockstep/variable/kinds/on_read_state.h"
#include "lockstep/variable/module/module_binding.h"
#include "lockstep/variable/module/module_buffers.h"
#include "lockstep/variable/placement.h"
#include "lockstep/variable/synchronization.h"
#include "lockstep/variable/variable_counts.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline variable {

class ValueDigests;
class WaitingValues;

/// Owned by the strategy. Changed under its CallScope or while all replicas are at rest in a meeting, so that replicas
/// may read it during a run.
class VariableRegistry {
 public:
  VariableRegistry(std::shared_ptr<ReplicaGroup> group, std::shared_ptr<const Placement> placement,
                   std::shared_ptr<const Synchronization> synchronization);

  /// Of all variables that this strategy makes, optimizers' slots included.
  const std::shared_ptr<VariableCounts>& counts() const { return counts_; }
  const Placement& placement() const { return *placement_; }
  const Synchronization& synchronization() const { return *synchronization_; }
  /// The values that wait for what is made from now on; null: none. Shared, because they take themselves away.
  const std::shared_ptr<WaitingValues>& waiting() const { return waiting_; }
  void set_waiting(std::shared_ptr<WaitingValues> values) { waiting_ = std::move(values); }
  /// What is made from variables' values. Shared, because modules may outlive the strategy.
  const std::shared_ptr<DerivedStates>& derived() const { return derived_; }

  /// Makes a variable from `initial()`, which is called once, under the random stream of (seed, name); `place` is the
  /// user's line. Throws the UsageErrors of Strategy::make_variable and the exceptions of `initial`; then nothing was
  /// made.
  std::shared_ptr<VariableState> make(VariableOptions options, FunctionRef<at::Tensor()> initial,
                                      const std::source_location& place);
  /// The same, but the variable is not added yet: for those of add_together.
  std::shared_ptr<VariableState> create(VariableOptions options, FunctionRef<at::Tensor()> initial,
                                        const std::source_location& place);

  /// The same in a step, while all replicas are at rest. The registry keeps such a variable as long as the strategy
  /// lives, because the handles that the step holds end with the step.
  std::shared_ptr<VariableState> make_in_step(const VariableOptions& options, FunctionRef<at::Tensor()> initial,
                                              const std::source_location& place);
  /// The variable of that name that a step made, or null. Any replica's thread.
  std::shared_ptr<VariableState> find_made_in_step(const std::string& name) const;

  /// Throws a UsageError, with both places, where a living variable, or module, has the name.
  void require_fresh_variable(const std::string& name, const std::source_location& place);
  void require_fresh_module(const std::string& name, const std::source_location& place);

  /// How many variables the placement was asked for: the index of the next.
  int64_t num_placed() const { return num_placed_; }
  /// Whether a living variable has the name.
  bool has_variable(const std::string& name);
  /// Adds a variable whose name no other one has: see require_fresh_variable and has_variable.
  void add(std::shared_ptr<VariableState> variable);
  /// Adds all of them or, where a value that waits for one of them does not fit, none, and uses no waiting value up.
  void add_together(const std::vector<Variable>& variables);
  /// Adds a module and its variables.
  void add(std::shared_ptr<ModuleBinding> module);

  /// In order of creation. Some may no longer have a handle: see forget_unused.
  const std::vector<std::shared_ptr<VariableState>>& variables() const { return variables_; }
  const std::vector<std::shared_ptr<ModuleBinding>>& modules() const { return modules_; }
  /// The buffers of these modules.
  ModuleBuffers& buffers() { return buffers_; }

  /// Removes the variables and modules to which no handle is left. Not while replicas run.
  void forget_unused();

  // Each calls VariableState's function of that name for the variables that it concerns. Clean-up does not throw.
  void begin_run(int64_t r) const;
  void check_components(int64_t r) const;
  void undo_run() const noexcept;
  void end_run() const noexcept;
  void drop_gradients() const noexcept;
  /// Looks for what other checks cannot see: foreign writes to memory (VariableState::check_memory) and late
  /// registrations (ModuleBinding::check_registered). Throws the error of the first one.
  void verify() const;
  /// Adds the value of each on-write variable, which must be equal on all workers.
  void add_mirrored(ValueDigests& digests) const;

 private:
  /// The next name for a variable without a name: "variable", "variable_1", and so on. It is never a name that any
  /// variable has had, so that names do not depend on which variables were destroyed.
  std::string fresh_name();
  std::vector<at::Tensor> on_read_components(const at::Tensor& value, const VariableOptions& options) const;
  std::vector<at::Tensor> on_write_components(const at::Tensor& value, const VariableOptions& options,
                                              std::vector<std::string>& devices) const;

  /// A run in which the last `count` variables were made rolls them back to their first values where it fails.
  void begin_runs(std::size_t count);
  /// Adds it to the lists that each run walks.
  void list(VariableState& variable);

  const std::shared_ptr<ReplicaGroup> group_;
  const std::shared_ptr<VariableCounts> counts_ = std::make_shared<VariableCounts>();
  const std::shared_ptr<const Placement> placement_;
  const std::shared_ptr<const Synchronization> synchronization_;
  std::shared_ptr<WaitingValues> waiting_;
  int64_t num_placed_ = 0;
  std::vector<std::shared_ptr<VariableState>> variables_;
  ComponentTable watched_;                 // of variables_, those that others must not write
  std::vector<OnReadState*> on_read_;      // of variables_
  std::unordered_set<std::string> names_;  // of variables_
  std::size_t forget_at_ = 0;              // how many variables make() may find before it looks for unused ones
  std::map<std::string, std::shared_ptr<VariableState>> made_in_steps_;
  std::vector<std::shared_ptr<ModuleBinding>> modules_;
  ModuleBuffers buffers_;
  std::unordered_set<std::string> like_fresh_;  // all names that were ever given and that fresh_name could give
  int64_t next_number_ = 0;                     // of fresh_name
  const std::shared_ptr<DerivedStates> derived_ = std::make_shared<DerivedStates>();
};

/// Whether LibTorch adds numbers of this dtype: not bool, 8-bit floating point, or unsigned integers above 8 bits.
bool can_be_added(at::ScalarType type);

/// `options` with kAuto resolved, for a variable of `type`. Throws a UsageError where they contradict it: a mean of
/// integers, a sum or mean of a dtype that cannot be added, or an enumerator that does not exist.
VariableOptions resolved(VariableOptions options, at::ScalarType type);

/// "train.cpp:12", or "the library" where no line of the user's is known.
std::string name_of(const std::source_location& place);

}  // namespace lockstep::internal::variable
