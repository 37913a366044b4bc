// What an optimizer is made of: its variables, checked, and the slots beside them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/optim/rules/group_rule.h"
#include "lockstep/optim/update/update_target.h"
#include "lockstep/variable/placement.h"
#include "lockstep/variable/variable.h"

namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica

namespace lockstep::internal::inline optim {

/// Variables that are updated by one rule.
struct RuleGroup {
  std::vector<Variable> variables;
  std::unique_ptr<GroupRule> rule;
};

/// All groups' variables, in order. Throws a UsageError where there are none, and a UsageError that names the variable
/// where it has a dtype that cannot be trained, is neither on-write nor trained locally, is trained locally and others
/// are not (or the other way round), belongs to another strategy, or is listed twice.
std::vector<std::shared_ptr<VariableState>> variables_of(const ReplicaGroup& of, const std::vector<RuleGroup>& groups);

/// Each variable with its slots. Makes the slots, in the memory that `placement` says; `prefix_of` says how the names
/// of a variable's slots begin. Where `sliced`, slots are zeros that take no memory yet: see sliced_slots.h.
std::vector<UpdateTarget> make_targets(const std::vector<RuleGroup>& groups,
                                       FunctionRef<std::string(const VariableState&)> prefix_of,
                                       const Placement& placement, bool sliced);

}  // namespace lockstep::internal::optim
