#include "lockstep/replica/collective_call.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "lockstep/core/error.h"
#include "lockstep/replica/replica_context.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal {

void CallSignature::add(int64_t word) { value_ = XXH3_64bits_withSeed(&word, sizeof word, value_); }

void CallSignature::add_dtype_and_shape(const at::Tensor& value, int64_t but_axis) {
  add(static_cast<int64_t>(value.scalar_type()));
  add(value.dim());
  for (int64_t d = 0; d < value.dim(); ++d) add(d == but_axis ? -1 : value.size(d));
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

}  // namespace lockstep::internal
