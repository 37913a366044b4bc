// The reduction of several tensors to one, in tree order: what every reduction of the library means, in every dtype.
// Loops that are faster for one dtype (tree_sum.h) have the same bits.
#pragma once

#include <ATen/core/TensorBody.h>

#include <span>

#include "lockstep/reduce/reduction.h"

namespace lockstep::internal {

/// The dtype of a reduction's result: float64 for kMean of integers, otherwise `value`'s. Throws the UsageError
/// LS-DTYPE for a dtype without such a reduction: sums and means of bool, extremes of complex numbers, and everything
/// of dtypes that LibTorch cannot compute with (8-bit floating point, quantized, unsigned of more than 8 bits).
at::ScalarType result_type_of(Reduction reduction, const at::Tensor& value);

/// The dtype in which values of `type` are added: half-precision values are added in float32 and rounded once.
at::ScalarType accumulation_type_of(at::ScalarType type);

/// `values` reduced; index i is replica i. All have one shape and dtype. The result is a new tensor. Computed on the
/// calling thread, without gradient. Integers: kSum keeps the dtype and wraps at its limits, as LibTorch's addition
/// does; kMean divides the exact sum, rounded once to float64, by the number of values.
at::Tensor reduce_tensors(Reduction reduction, std::span<const at::Tensor> values);

// The same in three parts, for those who have not all values in one place. A summand is a value in the form in which it
// is added: with float32 in place of half precision, pairs of real numbers in place of complex ones, and the two halves
// of integers whose mean is asked for, which have no limit to wrap at. So partial sums lose nothing on their way.

/// `value`'s summand. It may share the memory of `value`.
at::Tensor summand_of(Reduction reduction, const at::Tensor& value);
/// The summands in tree order, joined by addition, or by minimum or maximum. Index i is replica i; an undefined one is
/// absent. It may be one of them; undefined where all are absent.
at::Tensor fold_summands(Reduction reduction, std::span<const at::Tensor> summands);
/// What the fold of all summands means, for values of dtype `type`: divided by `count` for kMean, rounded once.
at::Tensor result_of(Reduction reduction, const at::Tensor& total, int64_t count, at::ScalarType type);

}  // namespace lockstep::internal
