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

std::string shape_text(const at::Tensor& value) {
  std::string text = fmt::format("{} [", c10::toString(value.scalar_type()));
  for (int64_t d = 0; d < value.dim(); ++d) text += fmt::format("{}{}", d == 0 ? "" : ", ", value.size(d));
  return text + "]";
}

void check_dense(const char* call, const at::Tensor& value) {
  if (value.defined() && value.layout() == at::kStrided) return;
  throw UsageError(fmt::format("{} was given {} tensor", call, value.defined() ? "a sparse" : "an undefined"),
                   "pass a dense tensor");
}

bool needs_grad(at::ArrayRef<at::Tensor> values) {
  return at::GradMode::is_enabled() &&
         std::any_of(values.begin(), values.end(), [](const at::Tensor& value) { return value.requires_grad(); });
}

const ReplicaContext& context_of_backward(const char* call) {
  const ReplicaContext* context = current_context();
  if (context) return *context;
  throw UsageError(fmt::format("backward went through {} outside of a step", call),
                   "call backward() inside the step function, on the replica's thread");
}

}  // namespace lockstep::internal
