// Cuts whole tensors into the replicas' parts.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>

#include "lockstep/core/ids.h"
#include "lockstep/core/per_replica.h"
#include "lockstep/data/batch.h"

namespace lockstep::internal {

/// Strategy::split() for the local replicas, `num_local_replicas` from `first_replica` on, of `num_replicas`.
PerReplica<Batch> split(const at::Tensor& input, const at::Tensor& target, int64_t num_replicas,
                        ReplicaId first_replica, int64_t num_local_replicas);

}  // namespace lockstep::internal
