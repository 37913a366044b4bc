// What values of all replicas become outside of steps, and in meetings where one thread has them all.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/reduce/reducer.h"
#include "lockstep/reduce/reduction.h"

namespace lockstep::internal {

// In all of these index i is replica i, and the values are operands (operands.h) of the replicas of the whole run. They
// run on the calling thread, without gradient, and give new tensors. `call` stands in messages.

/// The values reduced: tensors of one shape and dtype.
at::Tensor reduced(const char* call, const Reducer& reducer, Reduction reduction, std::span<const at::Tensor> values);

/// Each value taken together over `axes`, and the results reduced: tensors that may differ in size along these axes.
/// kMean is the mean over all elements. Extremes leave out values without elements. A UsageError where there is no
/// element at all, except for kSum.
at::Tensor reduced_over(const char* call, const Reducer& reducer, Reduction reduction,
                        std::span<const at::Tensor> values, std::span<const int64_t> axes);

/// The values joined along `axis`, in replica order: tensors of one dtype, of any size along it.
at::Tensor joined(const char* call, std::span<const at::Tensor> values, int64_t axis);

/// A copy of the value of one replica, of the bits that it reads as.
at::Tensor copied(const at::Tensor& value);

/// The one value of a variable of which each replica has a component, for kSum and kMean. Components with equal bits
/// have that mean; other means are formed in float64 and rounded once to the components' dtype.
at::Tensor reading_of(const Reducer& reducer, Reduction reduction, std::span<const at::Tensor> components);

}  // namespace lockstep::internal
