// The reduction of several tensors to one, in tree order: what reduce(), all_reduce() and reading a variable stand on.
#pragma once

#include <ATen/core/TensorBody.h>

#include <span>

#include "lockstep/reduce/reduction.h"

namespace lockstep::internal {

/// The dtype of a reduction's result: float64 for kMean of integers, otherwise `value`'s. A UsageError for a sum or
/// mean of bool, and for kMin and kMax of complex numbers.
at::ScalarType result_type_of(Reduction reduction, const at::Tensor& value);

/// A tensor in which sums are formed for values of `type`: half-precision values are summed in float32, and rounded
/// once.
at::ScalarType accumulation_type_of(at::ScalarType type);

/// `values` reduced; index i is replica i. All have one shape and dtype. The result is a new tensor. Computed on the
/// calling thread, without gradient.
at::Tensor reduce_tensors(Reduction reduction, std::span<const at::Tensor> values);

}  // namespace lockstep::internal
