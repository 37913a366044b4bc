// Reductions, gathers and broadcasts over the replicas of all workers: each worker sends what the others cannot
// compute, and every worker finishes the same sum.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/blocks.h"
#include "lockstep/reduce/reducer.h"
#include "lockstep/reduce/reduction.h"

namespace lockstep::internal::inline comm {
class Rounds;
}  // namespace lockstep::internal::comm

namespace lockstep::internal::inline reduce {

// All workers call these functions in the same order, after they have agreed to do so (comm/agreement.h). Between the
// agreement and the call there is no other round. They run on the calling thread, without gradient. Operands are
// those of operands.h. They throw what the World throws, a UsageError where a worker makes another call, and a
// PeerError where a worker has failed or sends a message that cannot be read.

/// Every worker's tensors, by worker, in the order in which it gave them. Numbers of tensors, shapes and dtypes may
/// differ, and tensors may be undefined. This worker's own tensors may share the memory of `mine`.
std::vector<std::vector<at::Tensor>> gather_across(Rounds& rounds, std::span<const at::Tensor> mine);

/// The `value` of worker `worker`, as a new tensor on every worker. The `value` of other workers is ignored.
at::Tensor broadcast_across(Rounds& rounds, int64_t worker, const at::Tensor& value);

/// The reduction of all replicas' values, with the bits that it has in a run with one worker. `mine` are the values of
/// this worker's replicas, which are block `local` of `replicas` in all. Where the reducer adds in tree order,
/// undefined values are absent, as absent leaves are, and the result is undefined where all are. Throws the UsageError
/// LS-NOT-ALIKE where workers have values of different shape or dtype.
at::Tensor reduce_across(Rounds& rounds, const Reducer& reducer, Reduction reduction, int64_t replicas, Block local,
                         std::span<const at::Tensor> mine);

}  // namespace lockstep::internal::reduce
