// One reduction of all replicas' tensors into a result for each replica, carried out by several lanes side by side.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>

#include "lockstep/reduce/reducer.h"
#include "lockstep/reduce/reduction.h"

namespace lockstep::internal {

/// Memory for the reduction of `value` and its likes, of the result's dtype. A UsageError for a dtype without one.
at::Tensor empty_result(Reduction reduction, const at::Tensor& value);

/// One replica's tensor, as plain_and_contiguous (operands.h) gives it, and its empty_result.
struct ReducedTensor {
  const at::Tensor* input;
  at::Tensor* output;
};

/// Which part of the work a lane does.
struct LanePart {
  int lane;
  int num_lanes;
  /// Whose work it is to reduce the tensor where it is not cut in slices.
  bool has_whole;
};

/// One lane's part of reducing `tensors`, which are by replica and alike: a slice of each output, or, where the dtype
/// or the reducer does not let itself be cut, all of it. The parts of all lanes do not overlap, and together they fill
/// every output. Bits do not depend on the lanes. `past_caches`: so much is written in all that no cache will hold it.
void reduce_in_lanes(const Reducer& reducer, Reduction reduction, c10::ArrayRef<ReducedTensor> tensors,
                     const LanePart& part, bool past_caches);

}  // namespace lockstep::internal
