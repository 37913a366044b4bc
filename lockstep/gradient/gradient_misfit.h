// Gradients that cannot belong to their variable.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <string>

namespace lockstep::internal::inline variable {
class VariableState;
}  // namespace lockstep::internal::variable

namespace lockstep::internal::inline gradient {

/// Whether the gradient is dense, and has the dtype, shape and device of `like`.
bool fits(const at::Tensor& gradient, const at::Tensor& like);
/// The same for a gradient that may have another layout than dense.
bool fits_but_for_layout(const at::Tensor& gradient, const at::Tensor& like);
/// Throws the UsageError of a sparse gradient of local replica r, which `refused` does not take.
[[noreturn]] void throw_not_dense(const VariableState& variable, int64_t r, const std::string& refused);
/// Throws the UsageError of a gradient of local replica r that does not fit.
[[noreturn]] void throw_misfit(const VariableState& variable, const at::Tensor& gradient, int64_t r);

}  // namespace lockstep::internal::gradient
