// Tensors as values of variables: which tensors fit, and what a conversion would lose.
#pragma once

#include <ATen/core/TensorBody.h>

#include <string>

#include "lockstep/core/error.h"
#include "lockstep/reduce/operands.h"

namespace lockstep::internal::inline variable {

class VariableState;

/// Why a tensor cannot be a value: `why` ends a sentence that begins with the tensor ("has shape [2] instead of [3]");
/// empty where it can.
struct Misfit {
  ErrorCode code = "LS-NOT-DENSE";
  std::string why = {};
  bool fits() const { return why.empty(); }
};

/// Why no variable can hold `tensor`: it is undefined, sparse, nested or quantized, or not in the host's memory.
Misfit unsuited(const at::Tensor& tensor);
/// Why `value` cannot be the variable's value: it is unsuited (but a dense tensor on a CUDA device fits), has another
/// shape, or has values that the variable's dtype cannot hold (a fraction, an imaginary part, a number out of range). A
/// loss of precision alone is no misfit. A value of an on-read variable may also have the shape that the variable's
/// components have now.
Misfit misfit(const VariableState& variable, const at::Tensor& value);

/// `value` without gradient, in the host's memory, in the variable's dtype, and without conjugate or negative bit. It
/// may be the memory of `value` itself. Throws a UsageError that names the variable and the call where it is a misfit.
at::Tensor value_for(const VariableState& variable, const at::Tensor& value, const char* call);

/// Whether an optimizer of the library can train a variable of this dtype: float16, bfloat16, float32 and float64, and
/// the complex numbers of float32 and float64.
bool is_trainable_type(at::ScalarType type);

/// The memory of complex numbers as pairs of real ones ([..., 2]), as at::view_as_real; other tensors as they are. An
/// update computes with these: real and imaginary parts are numbers of their own, as in torch.optim of Python.
at::Tensor as_numbers(const at::Tensor& tensor);

/// Fills with the number whose addition changes no bit: zero for integers and bool, negative zero for other dtypes,
/// because x + -0.0 has the bits of x even where x is -0.0.
void fill_with_additive_identity(at::Tensor& values);

/// Whether several of a tensor's elements may lie in the same memory, as those of an expanded tensor do.
bool elements_overlap(const at::Tensor& tensor);

/// Whether two tensors have the same dtype, device, sizes and strides.
bool same_layout(const at::Tensor& a, const at::Tensor& b);

}  // namespace lockstep::internal::variable
