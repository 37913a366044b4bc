// A digest of an optimizer, by which replicas and workers see that they step the same one in the same way.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/core/digest.h"
#include "lockstep/optim/optimizer_slots.h"
#include "lockstep/optim/rules/group_rule.h"

namespace lockstep::internal::inline optim {

/// Of the variables' names, dtypes, shapes and strides, in order, and of the groups' rules.
Digest digest_of(const std::vector<std::shared_ptr<VariableState>>& variables, const std::vector<RuleGroup>& groups);

/// With the settings, which can change after the optimizer was made.
Digest with_settings(Digest digest, const std::vector<std::unique_ptr<GroupRule>>& rules);

}  // namespace lockstep::internal::optim
