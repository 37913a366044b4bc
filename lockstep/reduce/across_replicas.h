// Reduces, joins and copies the values of all replicas on one thread: outside of steps, and in meetings.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/reduce/reducer.h"
#include "lockstep/reduce/reduction.h"

namespace lockstep::internal::inline reduce {

// In all of these functions values[i] belongs to replica i of the whole run and is an operand (operands.h). They run on
// the calling thread, without gradient, and give new tensors. `call` is the user's call, for messages.

/// The reduction of the values. Throws a UsageError unless they have one shape and dtype.
at::Tensor reduced(const char* call, const Reducer& reducer, Reduction reduction, std::span<const at::Tensor> values);

/// Reduces each value over `axes`, and then the results over the replicas. The values may differ in size along these
/// axes. kMean is the mean over all elements. kMin and kMax leave out values without elements. Throws a UsageError
/// where no value has an element, except for kSum.
at::Tensor reduced_over(const char* call, const Reducer& reducer, Reduction reduction,
                        std::span<const at::Tensor> values, std::span<const int64_t> axes);

/// The values, joined along `axis` in replica order. They have one dtype and may differ in size along `axis` only.
at::Tensor joined(const char* call, std::span<const at::Tensor> values, int64_t axis);

/// A copy of one replica's value, with the bits that a reader of it sees.
at::Tensor copied(const at::Tensor& value);

/// The value that a variable reads as where each replica has a component, for kSum and kMean. The mean of components
/// with equal bits has these bits; other means are computed in float64 and rounded once to the components' dtype.
at::Tensor reading_of(const Reducer& reducer, Reduction reduction, std::span<const at::Tensor> components);

}  // namespace lockstep::internal::reduce
