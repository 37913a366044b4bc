// What an optimizer's state() gives and load() takes, as names and tensors.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/optim/rules/group_rule.h"
#include "lockstep/variable/variable.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline optim {

/// A slot, and its name in saved state, in which the optimizer's name does not occur.
struct NamedSlot {
  std::string name;
  Variable variable;
};

/// Rules compute in double, which holds each count of steps up to this one.
inline constexpr int64_t kMostSteps = int64_t{1} << 53;

/// The values.
struct SavedState {
  std::vector<at::Tensor> slots;       // by slot
  std::vector<int64_t> steps;          // by variable: how often it was updated
  std::vector<RuleSettings> settings;  // by group
  int64_t extra_steps = 0;
  std::vector<bool> has_schedule;  // by group
};

/// Named tensors from values: "<variable>/<slot>", "<variable>/step" and "learning_rate/<group>", and
/// "weight_decay/<group>" and "momentum/<group>" where a rule was not made with them; "rule/<group>" for rules of the
/// program's own, "extra_steps" where there are some, and "has_schedule/<group>" where it has one.
std::map<std::string, at::Tensor> named_state(const SavedState& state, std::span<const NamedSlot> slots,
                                              std::span<const std::shared_ptr<VariableState>> variables,
                                              std::span<const std::unique_ptr<GroupRule>> rules);

/// Values from named tensors; those of slots are converted to the slots' dtypes. Throws a UsageError that lists
/// everything missing, unexpected or unfit. `optimizer` is the optimizer's name in it. Where no rate is named, rules
/// keep theirs; a weight decay or momentum that is not named is what the rule was made with.
SavedState values_of(const std::map<std::string, at::Tensor>& named, std::span<const NamedSlot> slots,
                     std::span<const std::shared_ptr<VariableState>> variables,
                     std::span<const std::unique_ptr<GroupRule>> rules, const std::string& optimizer);

}  // namespace lockstep::internal::optim
