// Reduces several tensors to one, in tree order. This defines what every reduction of the library gives, in every
// dtype; the faster loops for one dtype (tree_sum.h) give the same bits.
#pragma once

#include <ATen/core/TensorBody.h>

#include <span>

#include "lockstep/reduce/reduction.h"

namespace lockstep::internal::inline reduce {

/// The dtype of a reduction's result: float64 for kMean of integers, otherwise `value`'s. Throws the UsageError
/// LS-DTYPE for a dtype without such a reduction: sums and means of bool, extremes of complex numbers, and everything
/// of dtypes that LibTorch cannot compute with (8-bit floating point, quantized, unsigned of more than 8 bits).
at::ScalarType result_type_of(Reduction reduction, const at::Tensor& value);

/// The dtype in which values of `type` are added: half-precision values are added in float32 and rounded once.
at::ScalarType accumulation_type_of(at::ScalarType type);

/// The reduction of `values`, where values[i] is replica i's; all have one shape and dtype. The result is a new tensor.
/// It is computed on the calling thread, without gradient. For integers kSum keeps the dtype and wraps at its limits,
/// as LibTorch's addition does; kMean divides the exact sum, rounded once to float64, by the number of values.
at::Tensor reduce_tensors(Reduction reduction, std::span<const at::Tensor> values);

// The same in three steps, for callers that do not have all values in one place. A summand is a value in the form in
// which it is added: float32 in place of half precision, pairs of real numbers in place of complex numbers, and for
// means of integers the two halves of each integer, so that no sum wraps. So partial sums lose nothing.

/// `value`'s summand. It may share the memory of `value`.
at::Tensor summand_of(Reduction reduction, const at::Tensor& value);
/// The summands joined in tree order, by addition, minimum or maximum. summands[i] is replica i's; an undefined one is
/// absent. The result may be one of the summands, and it is undefined where all are absent.
at::Tensor fold_summands(Reduction reduction, std::span<const at::Tensor> summands);
/// Turns `total`, the fold of all summands, into the result for values of dtype `type`: divided by `count` for kMean,
/// rounded once.
at::Tensor result_of(Reduction reduction, const at::Tensor& total, int64_t count, at::ScalarType type);

}  // namespace lockstep::internal::reduce
