// All variables and modules of one strategy: makes variables, keeps names unique, and a step looks at each of them.
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
#include "lockstep/variable/component_table.h"
#include "lockstep/variable/module_binding.h"
#include "lockstep/variable/placement.h"
#include "lockstep/variable/synchronization.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal {

/// Owned by the strategy. Changed under its CallScope or while all replicas are at rest in a meeting, so that replicas
/// may read it during a run.
class VariableRegistry {
 public:
  VariableRegistry(std::shared_ptr<ReplicaGroup> group, std::shared_ptr<const Placement> placement,
                   std::shared_ptr<const Synchronization> synchronization);

  const Placement& placement() const { return *placement_; }
  const Synchronization& synchronization() const { return *synchronization_; }

  /// Makes a variable from `initial()`, which is called once, under the stream of (seed, name); `place` is the user's
  /// line. Throws the UsageErrors of Strategy::make_variable, and what `initial` throws: then nothing was made.
  std::shared_ptr<VariableState> make(VariableOptions options, FunctionRef<at::Tensor()> initial,
                                      const std::source_location& place);

  /// The same in a step, all replicas at rest. The registry keeps such a variable as long as the strategy lives, as a
  /// step's own handle ends with the step.
  std::shared_ptr<VariableState> make_in_step(const VariableOptions& options, FunctionRef<at::Tensor()> initial,
                                              const std::source_location& place);
  /// The variable of that name that a step made, or null. Any replica's thread.
  std::shared_ptr<VariableState> find_made_in_step(const std::string& name) const;

  /// Throws a UsageError, with both places, where a living variable, or module, has the name.
  void require_fresh_variable(const std::string& name, const std::source_location& place);
  void require_fresh_module(const std::string& name, const std::source_location& place);

  /// How many variables the placement was asked for: the index of the next.
  int64_t num_placed() const { return num_placed_; }
  void add(std::shared_ptr<VariableState> variable);
  /// Adds a module and its variables.
  void add(std::shared_ptr<ModuleBinding> module);

  /// In order of creation. Some may no longer be in the user's hands: see forget_unused.
  const std::vector<std::shared_ptr<VariableState>>& variables() const { return variables_; }
  const std::vector<std::shared_ptr<ModuleBinding>>& modules() const { return modules_; }

  /// Lets go of what nobody else holds. Not while replicas run.
  void forget_unused();

  // VariableState's functions of these names, for each variable that they concern.
  void begin_run(int64_t r) const;
  void check_components(int64_t r) const;
  void undo_run() const;
  void end_run() const;

 private:
  /// A name that no living variable has: "variable", "variable_1", ... and so on; none comes twice.
  std::string fresh_name(const std::string& base);
  std::vector<at::Tensor> on_read_components(const at::Tensor& value, const VariableOptions& options) const;
  std::vector<at::Tensor> on_write_components(const at::Tensor& value, const VariableOptions& options,
                                              std::vector<std::string>& devices) const;

  /// Notes what each run looks at.
  void list(VariableState& variable);

  const std::shared_ptr<ReplicaGroup> group_;
  const std::shared_ptr<const Placement> placement_;
  const std::shared_ptr<const Synchronization> synchronization_;
  int64_t num_placed_ = 0;
  std::vector<std::shared_ptr<VariableState>> variables_;
  ComponentTable watched_;                      // of variables_, those that others must not write
  std::vector<VariableState*> on_read_;         // of variables_
  std::unordered_multiset<std::string> names_;  // of variables_; slots of two optimizers may share theirs
  std::map<std::string, std::shared_ptr<VariableState>> made_in_steps_;
  std::vector<std::shared_ptr<ModuleBinding>> modules_;
  std::map<std::string, int64_t> next_number_;  // of fresh_name, for each base: the names before are taken, or were
};

/// `options` with kAuto resolved, for a variable of `type`. Throws a UsageError where they contradict it: a mean of
/// integers, a sum of bool, or an enumerator that does not exist.
VariableOptions resolved(VariableOptions options, at::ScalarType type);

/// "train.cpp:12", or "the library" where no line of the user's is known.
std::string name_of(const std::source_location& place);

}  // namespace lockstep::internal
