// What the collectives share: how replicas see that they make the same call, and the step that a backward runs in.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>

#include "lockstep/core/digest.h"

namespace lockstep {
class ReplicaContext;
}

namespace lockstep::internal::inline replica {

/// Of what must agree on all replicas, for Meeting::signature. Leaves the size along `but_axis` out.
Digest with_dtype_and_shape(const Digest& digest, const at::Tensor& value, int64_t but_axis = -1);

/// Whether autograd records what is computed from `values`.
bool needs_grad(at::ArrayRef<at::Tensor> values);

/// The context of the step that a backward pass runs in. Throws a UsageError, which names `call`, outside of steps.
const ReplicaContext& context_of_backward(const char* call);

}  // namespace lockstep::internal::replica
