// Gradients that cannot belong to their variable.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>

namespace lockstep::internal {

class VariableState;

/// Whether the gradient is dense, and has the dtype, shape and device of `like`.
bool fits(const at::Tensor& gradient, const at::Tensor& like);
/// Throws the UsageError of a gradient of local replica r that does not fit.
[[noreturn]] void throw_misfit(const VariableState& variable, const at::Tensor& gradient, int64_t r);

}  // namespace lockstep::internal
