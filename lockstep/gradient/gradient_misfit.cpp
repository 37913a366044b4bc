#include "lockstep/gradient/gradient_misfit.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/error.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline gradient {

bool fits(const at::Tensor& gradient, const at::Tensor& like) {
  return gradient.layout() == at::kStrided && fits_but_for_layout(gradient, like);
}

bool fits_but_for_layout(const at::Tensor& gradient, const at::Tensor& like) {
  return gradient.scalar_type() == like.scalar_type() && gradient.sizes() == like.sizes() &&
         gradient.device() == like.device();
}

[[noreturn]] void throw_not_dense(const VariableState& variable, int64_t r, const std::string& refused) {
  throw UsageError("LS-NOT-DENSE",
                   fmt::format("variable '{}' has a sparse gradient on replica {}, which {} does not take",
                               variable.name(), variable.group()->first_replica() + r, refused),
                   "train it by SGDOptions, AdagradOptions or AdamOptions (for sparse gradients SparseAdam's rule), "
                   "without weight decay; or make it dense, as torch::nn::EmbeddingOptions::sparse(false) does");
}

[[noreturn]] void throw_misfit(const VariableState& variable, const at::Tensor& gradient, int64_t r) {
  const at::Tensor& like = variable.component(r);
  const int64_t replica = variable.group()->first_replica() + r;
  if (gradient.layout() != at::kStrided && fits_but_for_layout(gradient, like)) {
    throw_not_dense(variable, r, "the library in this layout");
  }
  throw UsageError(
      "LS-GRADIENT-MISFIT",
      fmt::format("the gradient of variable '{}' on replica {} is {} [{}] on {}, the variable {} [{}] on {}",
                  variable.name(), replica, c10::toString(gradient.scalar_type()), fmt::join(gradient.sizes(), ", "),
                  gradient.device().str(), c10::toString(like.scalar_type()), fmt::join(like.sizes(), ", "),
                  like.device().str()),
      "leave .grad() to backward(), or set it in the variable's own shape, dtype and device");
}

}  // namespace lockstep::internal::gradient
