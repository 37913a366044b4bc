// Reduces the tensors of all replicas into one result for each replica; several lanes share the work.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>

#include "lockstep/reduce/reducer.h"
#include "lockstep/reduce/reduction.h"

namespace lockstep::internal::inline reduce {

/// Memory for the reduction of tensors that are like `value`: its shape, and the result's dtype. Throws a UsageError
/// for a dtype without this reduction.
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
  /// Whether this lane reduces the whole tensor where it is not cut into slices.
  bool has_whole;
};

/// Does one lane's part of reducing `tensors`, one for each replica, which have one shape and dtype. It fills a slice
/// of each output. Where the dtype or the reducer does not allow slices, the lane with `has_whole` fills all outputs.
/// The parts of all lanes do not overlap, and together they fill every output. Bits do not depend on the lanes.
/// `past_caches` says that more is written in all than a cache holds.
void reduce_in_lanes(const Reducer& reducer, Reduction reduction, c10::ArrayRef<ReducedTensor> tensors,
                     const LanePart& part, bool past_caches);

/// Writes `result` to `output`, which has its dtype and shape and is dense, in any mode of the calling thread: copy_
/// would refuse a tensor of inference mode.
void write_result(at::Tensor& output, const at::Tensor& result);

}  // namespace lockstep::internal::reduce
