// Tensors as values of variables: what can be one, and what a conversion would lose.
#pragma once

#include <ATen/core/TensorBody.h>

#include <string>

#include "lockstep/core/error.h"
#include "lockstep/reduce/operands.h"

namespace lockstep::internal {

class VariableState;

/// Why a tensor cannot be a value: `why` ends a sentence that begins with the tensor ("has shape [2] instead of [3]");
/// empty where it can.
struct Misfit {
  ErrorCode code = "LS-NOT-DENSE";
  std::string why = {};
  bool fits() const { return why.empty(); }
};

/// What no variable can hold: an undefined, sparse, nested or quantized tensor, or one that is not in the host's
/// memory.
Misfit unsuited(const at::Tensor& tensor);
/// Why `value` cannot be the variable's: the above, another shape, or values that its dtype cannot hold (a fraction, an
/// imaginary part, a number out of range). What loses only precision fits. A value of an on-read variable may also have
/// the shape that the variable's components have now.
Misfit misfit(const VariableState& variable, const at::Tensor& value);

/// `value` without gradient, in the variable's dtype, with values of its own in memory (no conjugate or negative bit).
/// Throws the UsageError of its misfit, naming the variable and the call.
at::Tensor value_for(const VariableState& variable, const at::Tensor& value, const char* call);

/// Whether an optimizer of the library can train a variable of this dtype: float16, bfloat16, float32 and float64.
bool is_trainable_type(at::ScalarType type);

/// Fills with what adds nothing: negative zero, because x + -0.0 has the bits of x for -0.0 too; zero for integers.
void fill_with_additive_identity(at::Tensor& values);

/// Whether several of a tensor's elements may lie in the same memory, as those of an expanded tensor do.
bool elements_overlap(const at::Tensor& tensor);

/// Whether two tensors have the same dtype, device, sizes and strides.
bool same_layout(const at::Tensor& a, const at::Tensor& b);

}  // namespace lockstep::internal
