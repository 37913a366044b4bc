// What values of all workers' replicas become: each worker hands on what the others cannot compute, and all of them
// finish the same sum.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/blocks.h"
#include "lockstep/reduce/reducer.h"
#include "lockstep/reduce/reduction.h"

namespace lockstep {
class World;
}

namespace lockstep::internal {

// All workers call these in the same order, after they have agreed that they do (comm/agreement.h); in between nothing
// else talks. They run on the calling thread, without gradient, and give new tensors. Operands are those of operands.h.
// Throw what the World throws.

/// Every worker's tensors, by worker, in the order in which it gave them. Numbers of tensors, shapes and dtypes may
/// differ.
std::vector<std::vector<at::Tensor>> gather_across(World& world, std::span<const at::Tensor> mine);

/// The tensor that `worker` gave, on every worker; others' `value` is not looked at.
at::Tensor broadcast_across(World& world, int64_t worker, const at::Tensor& value);

/// The reduction of all replicas' values, with the bits that it has where one worker has all replicas. `mine` are the
/// values of this worker's replicas, which are block `local` of `replicas` in all. Where the reducer adds in tree
/// order, undefined values are absent, as absent leaves are, and the result is undefined where all are. Throws the
/// UsageError LS-NOT-ALIKE unless all have one shape and dtype.
at::Tensor reduce_across(World& world, const Reducer& reducer, Reduction reduction, int64_t replicas, Block local,
                         std::span<const at::Tensor> mine);

}  // namespace lockstep::internal
