#include "lockstep/replica/collective_call.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/core/error.h"
#include "lockstep/replica/replica_context.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline replica {

Digest with_dtype_and_shape(const Digest& digest, const at::Tensor& value, int64_t but_axis) {
  Digest all = digest.with(value.scalar_type()).with(value.dim());
  for (int64_t d = 0; d < value.dim(); ++d) all = all.with(d == but_axis ? -1 : value.size(d));
  return all;
}

bool needs_grad(at::ArrayRef<at::Tensor> values) {
  return at::GradMode::is_enabled() &&
         std::any_of(values.begin(), values.end(), [](const at::Tensor& value) { return value.requires_grad(); });
}

const ReplicaContext& context_of_backward(const char* call) {
  const ReplicaContext* context = current_context();
  if (context) return *context;
  throw UsageError("LS-OUTSIDE-STEP", fmt::format("backward went through {} outside of a step", call),
                   "call backward() inside the step function, on the replica's thread");
}

}  // namespace lockstep::internal::replica
