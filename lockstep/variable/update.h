// Strategy::update: calls a function for each copy of a variable, and says what the variable's calls mean inside it.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>

#include "lockstep/core/function_ref.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline variable {

/// While it lives, the calling thread is inside the function of an update.
class UpdateScope {
 public:
  /// `value` is the tensor that the function changes. Of an on-read `variable` it stands for local replica `replica`'s
  /// component; of an on-write one `replica` is only the number of the call.
  UpdateScope(const VariableState& variable, int64_t replica, at::Tensor& value);
  ~UpdateScope();
  UpdateScope(const UpdateScope&) = delete;
  UpdateScope& operator=(const UpdateScope&) = delete;

  /// The update that this thread is in, or null.
  static const UpdateScope* current();
  /// Throws a UsageError, which names `call`, where this thread is in an update.
  static void require_none(const char* call);
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

/// Changes a variable by calls of `fn(value, index)`: one for each component of an on-read variable, one for each copy
/// of an on-write variable, or, with `for_each_replica`, one for each local replica, each on a separate value. `index`
/// is the number of the component, copy or local replica. For an on-write variable all calls must leave the same bits,
/// otherwise a DivergenceError. Where anything is thrown, nothing has changed. Call outside of steps, or while all
/// replicas are at rest.
void update(VariableState& variable, bool for_each_replica, FunctionRef<void(at::Tensor&, int64_t)> fn);

}  // namespace lockstep::internal::variable
