// Cuts whole tensors into the replicas' parts.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/ids.h"
#include "lockstep/core/per_replica.h"
#include "lockstep/data/batch.h"

namespace lockstep {

/// Which dimension of the tensors that Strategy::split() cuts is that of the samples.
struct SplitOptions {
  int64_t axis = 0;  // a negative one counts from the last
  /// That of tensors for which it is another, by their names: "target", or a name in Batch::more.
  std::map<std::string, int64_t> axes = {};
};

namespace internal::inline data {

/// A tensor, and what it is called: "input" and "target" are those members of Batch, other names stand in Batch::more.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// Those of a list: the input, the target, then "2", "3" and so on.
std::vector<NamedTensor> named(std::span<const at::Tensor> tensors);
std::vector<NamedTensor> named(const std::map<std::string, at::Tensor>& tensors);

/// Strategy::split() for the local replicas, `num_local_replicas` from `first_replica` on, of `num_replicas`.
PerReplica<Batch> split(const std::vector<NamedTensor>& tensors, const SplitOptions& options, int64_t num_replicas,
                        ReplicaId first_replica, int64_t num_local_replicas);

}  // namespace internal::data
}  // namespace lockstep
