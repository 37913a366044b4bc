// All variables and modules of one strategy: their names are unique, and a step looks at each of them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/variable/module_binding.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal {

/// Owned by the strategy; used under its CallScope, and read by replicas during a run.
class VariableRegistry {
 public:
  /// Throws a UsageError where a living variable, or module, has the name.
  void require_fresh_variable(const std::string& name);
  void require_fresh_module(const std::string& name);
  /// A name that no living variable has: "variable", "variable_1", ... and so on; none comes twice.
  std::string fresh_name(const std::string& base);

  void add(std::shared_ptr<VariableState> variable) { variables_.push_back(std::move(variable)); }
  /// Adds a module and its variables.
  void add(std::shared_ptr<ModuleBinding> module);

  /// In order of creation. Some may no longer be in the user's hands: see forget_unused.
  const std::vector<std::shared_ptr<VariableState>>& variables() const { return variables_; }
  const std::vector<std::shared_ptr<ModuleBinding>>& modules() const { return modules_; }

  /// Lets go of what nobody else holds. Outside of runs.
  void forget_unused();

 private:
  std::vector<std::shared_ptr<VariableState>> variables_;
  std::vector<std::shared_ptr<ModuleBinding>> modules_;
  std::map<std::string, int64_t> next_number_;  // of fresh_name, for each base: the names before are taken, or were
};

}  // namespace lockstep::internal
