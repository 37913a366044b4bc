// What the collectives share: how replicas see that they make the same call, and the step that a backward runs in.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>

namespace lockstep {
class ReplicaContext;
}

namespace lockstep::internal {

/// Words that must agree on all replicas, folded into one for Meeting::signature.
class CallSignature {
 public:
  void add(int64_t word);
  /// Leaves the size along `but_axis` out.
  void add_dtype_and_shape(const at::Tensor& value, int64_t but_axis = -1);
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

/// Whether autograd records what is computed from `values`.
bool needs_grad(at::ArrayRef<at::Tensor> values);

/// The context of the step that a backward pass runs in. Throws a UsageError, which names `call`, outside of steps.
const ReplicaContext& context_of_backward(const char* call);

}  // namespace lockstep::internal
