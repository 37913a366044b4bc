// A variable to update, and how.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/optim/rules/update_rule.h"
#include "lockstep/optim/update/update_plan.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline optim {

struct UpdateTarget {
  std::shared_ptr<VariableState> variable;
  std::vector<std::shared_ptr<VariableState>> slots;
  UpdateKind kind;
  std::shared_ptr<const UpdateRule> own_rule = nullptr;  // of kOwn
};

/// Their variables, in order.
std::vector<std::shared_ptr<VariableState>> variables_of(const std::vector<UpdateTarget>& targets);

/// What a plan has to know of them.
std::vector<PlannedTarget> planned(const std::vector<UpdateTarget>& targets);

/// How many blocks all targets have.
int64_t blocks_in(const std::vector<UpdateTarget>& targets);

}  // namespace lockstep::internal::optim
