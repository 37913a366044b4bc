// Strategy::update: one function for each copy of a variable, and what the variable's own calls mean inside it.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>

#include "lockstep/core/function_ref.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal {

/// While it lives, the calling thread is inside the function of an update.
class UpdateScope {
 public:
  /// `value` is the tensor that the function changes: local replica `replica`'s component of `variable`, or the copy in
  /// which it lies.
  UpdateScope(const VariableState& variable, int64_t replica, at::Tensor& value);
  ~UpdateScope();
  UpdateScope(const UpdateScope&) = delete;
  UpdateScope& operator=(const UpdateScope&) = delete;

  /// The update that this thread is in, or null.
  static const UpdateScope* current();
  /// The update of `variable` that this thread is in, or null.
  static const UpdateScope* of(const VariableState& variable);

  const VariableState& variable() const { return variable_; }
  int64_t replica() const { return replica_; }
  at::Tensor& value() const { return value_; }

 private:
  const VariableState& variable_;
  const int64_t replica_;
  at::Tensor& value_;
};

/// Changes a variable by `fn(value, local replica)`: for each component of an on-read variable, for each copy of an
/// on-write one, or, with `for_each_replica`, for each replica on a value of its own. What an on-write variable's calls
/// leave must have the same bits, otherwise a DivergenceError. Where anything is thrown, nothing has changed. Outside
/// of steps, or all replicas at rest.
void update(VariableState& variable, bool for_each_replica, FunctionRef<void(at::Tensor&, int64_t)> fn);

}  // namespace lockstep::internal
