// What the collectives share: how replicas see that they mean the same call, and in which step a backward runs.
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
  void add_dtype_and_shape(const at::Tensor& value, int64_t but_axis = -1);
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

/// Whether a gradient will be asked of what is computed from it.
bool needs_grad(at::ArrayRef<at::Tensor> values);

/// The context of the step that a backward pass runs in; a UsageError where there is none.
const ReplicaContext& context_of_backward(const char* call);

}  // namespace lockstep::internal
