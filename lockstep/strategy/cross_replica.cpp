// Strategy::reduce, gather and broadcast: what all replicas brought together becomes one, outside of steps.
#include <fmt/format.h>

#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/reduce/across_replicas.h"
#include "lockstep/reduce/operands.h"
#include "lockstep/replica/compute_settings.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep {

using internal::CallScope;
using internal::ComputeSettingsGuard;

namespace {

/// The local replicas' tensors, each an operand.
std::vector<at::Tensor> operands_of(const char* call, const PerReplica<at::Tensor>& values, int64_t replicas) {
  if (static_cast<int64_t>(values.size()) != replicas) {
    throw UsageError("LS-PER-REPLICA-SIZE",
                     fmt::format("{} was given {} values for {} replicas", call, values.size(), replicas),
                     "pass what run() or per_replica() of this strategy gave");
  }
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& value : values) {
    internal::check_operand(call, value, values.first_replica() + static_cast<int64_t>(tensors.size()));
    tensors.push_back(value.detach());
  }
  return tensors;
}

}  // namespace

at::Tensor Strategy::reduce(Reduction reduction, const PerReplica<at::Tensor>& values, const Axes& axes) const {
  constexpr const char* kCall = "Strategy::reduce";
  const CallScope call(*group_, kCall, "call ctx.all_reduce()");
  const ComputeSettingsGuard settings(group_->plan().compute);
  const std::vector<at::Tensor> tensors = operands_of(kCall, values, num_local_replicas());
  if (axes.values().empty()) return internal::reduced(kCall, group_->reducer(), reduction, tensors);
  return internal::reduced_over(kCall, group_->reducer(), reduction, tensors, axes.values());
}

at::Tensor Strategy::gather(const PerReplica<at::Tensor>& values, int64_t axis) const {
  constexpr const char* kCall = "Strategy::gather";
  const CallScope call(*group_, kCall, "call ctx.all_gather()");
  return internal::joined(kCall, operands_of(kCall, values, num_local_replicas()), axis);
}

at::Tensor Strategy::broadcast(ReplicaId from, const at::Tensor& value) const {
  constexpr const char* kCall = "Strategy::broadcast";
  const CallScope call(*group_, kCall, "call ctx.broadcast()");
  check_replica(from, kCall);
  internal::check_operand(kCall, value);
  return internal::copied(value);
}

}  // namespace lockstep
