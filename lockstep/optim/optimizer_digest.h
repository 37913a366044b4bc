// A digest of an optimizer, by which replicas and workers see that they step the same one in the same way.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/optim/group_rule.h"
#include "lockstep/optim/optimizer_slots.h"

namespace lockstep::internal {

/// A number that differs where any of its inputs differs, but for a chance of about 2^-64. It is the same in every
/// process of one build.
class OptimizerDigest {
 public:
  /// Of the variables' names, dtypes, shapes and strides, in order, and of the groups' rules.
  static OptimizerDigest of(const std::vector<std::shared_ptr<VariableState>>& variables,
                            const std::vector<RuleGroup>& groups);

  OptimizerDigest with(uint64_t more) const;
  OptimizerDigest with(double more) const;
  /// With the settings, which can change after the optimizer was made.
  OptimizerDigest with_settings(const std::vector<std::unique_ptr<GroupRule>>& rules) const;
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

}  // namespace lockstep::internal
