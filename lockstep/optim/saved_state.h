// What an optimizer's state() gives and load() takes, as names and tensors.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/variable/variable.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal {

/// A slot, and its name in saved state, in which the optimizer's name does not occur.
struct NamedSlot {
  std::string name;
  Variable variable;
};

/// The values.
struct SavedState {
  std::vector<at::Tensor> slots;  // by slot
  std::vector<int64_t> steps;     // by variable: how often it was updated
  std::vector<double> rates;      // by group; empty: none were saved
};

/// Named tensors from values: "<variable>/<slot>", "<variable>/step" and "learning_rate/<group>".
std::map<std::string, at::Tensor> named_state(const SavedState& state, std::span<const NamedSlot> slots,
                                              std::span<const std::shared_ptr<VariableState>> variables);

/// Values from named tensors; those of slots are converted to the slots' dtypes. Throws a UsageError that lists
/// everything missing, unexpected or unfit. `optimizer` is the optimizer's name in it.
SavedState values_of(const std::map<std::string, at::Tensor>& named, std::span<const NamedSlot> slots,
                     std::span<const std::shared_ptr<VariableState>> variables, int64_t groups,
                     const std::string& optimizer);

}  // namespace lockstep::internal
