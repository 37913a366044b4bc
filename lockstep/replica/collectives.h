// What replicas compute together inside a step: reductions, gathers and broadcasts of their tensors.
#pragma once

#include <ATen/core/TensorBody.h>

#include <source_location>
#include <vector>

#include "lockstep/core/ids.h"
#include "lockstep/reduce/reduction.h"

namespace lockstep {
class ReplicaContext;
}

namespace lockstep::internal::inline replica {

// The contracts are those of ReplicaContext's members of the same names.
at::Tensor all_reduce(const ReplicaContext& context, Reduction reduction, const at::Tensor& value,
                      const std::source_location& place);
std::vector<at::Tensor> all_reduce(const ReplicaContext& context, Reduction reduction,
                                   const std::vector<at::Tensor>& values, const std::source_location& place);
at::Tensor all_gather(const ReplicaContext& context, const at::Tensor& value, int64_t axis,
                      const std::source_location& place);
at::Tensor broadcast(const ReplicaContext& context, ReplicaId from, const at::Tensor& value,
                     const std::source_location& place);

}  // namespace lockstep::internal::replica
