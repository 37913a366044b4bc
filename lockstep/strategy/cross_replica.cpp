// Strategy::reduce, gather and broadcast: the collectives outside of steps.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/reduce/across_replicas.h"
#include "lockstep/reduce/operands.h"
#include "lockstep/reduce/reduce_tensors.h"
#include "lockstep/replica/collective_call.h"
#include "lockstep/replica/pool/compute_settings.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep {

using internal::CallScope;
using internal::ComputeSettingsGuard;

namespace {

/// The local replicas' tensors. Throws a UsageError where their number is wrong, or where one is no valid operand.
std::vector<at::Tensor> operands_of(const char* call, const PerReplica<at::Tensor>& values, int64_t replicas) {
  if (static_cast<int64_t>(values.size()) != replicas) {
    throw UsageError(
        "LS-PER-REPLICA-SIZE",
        fmt::format("{} was given {} for {}", call, internal::counted(static_cast<int64_t>(values.size()), "value"),
                    internal::counted(replicas, "replica")),
        "pass what run() or per_replica() of this strategy gave");
  }
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& value : values) {
    internal::check_operand(call, value, values.first_replica() + static_cast<int64_t>(tensors.size()));
    tensors.push_back(value.detach());
  }
  return tensors;
}

/// The local replicas' tensors, after all workers have agreed on the call: on dtypes, on shapes except for the sizes
/// along `axes`, and on the number that `word_of` makes of a tensor. `word_of` may throw, to refuse the tensor.
template <class WordOf>
std::vector<at::Tensor> agreed_operands(const internal::ReplicaGroup& group, const char* call,
                                        const PerReplica<at::Tensor>& values, std::span<const int64_t> axes,
                                        const WordOf& word_of) {
  std::vector<at::Tensor> mine;
  internal::agree_on_call(group.rounds(), {.call = call, .step = group.step()}, [&](internal::Proposal& proposal) {
    mine = operands_of(call, values, group.num_local_replicas());
    const std::vector<int64_t> free = internal::checked_axes(call, axes, mine.front().dim());
    std::vector<int64_t> ids(mine.size());
    std::iota(ids.begin(), ids.end(), group.first_replica().value());
    internal::check_alike(call, mine, free, ids);
    if (group.num_workers() == 1) return;
    const at::Tensor& first = mine.front();
    internal::Digest digest = internal::Digest().with(word_of(first)).with(first.scalar_type()).with(first.dim());
    for (int64_t d = 0; d < first.dim(); ++d) {
      const bool is_free = std::find(free.begin(), free.end(), d) != free.end();
      digest = digest.with(is_free ? -1 : first.size(d));
    }
    proposal.signature = digest.value();
    proposal.detail = fmt::format("{}({})", call, internal::shape_text(first));
  });
  return mine;
}

}  // namespace

at::Tensor Strategy::reduce(Reduction reduction, const PerReplica<at::Tensor>& values, const Axes& axes) const {
  constexpr const char* kCall = "Strategy::reduce";
  const CallScope call(*group_, kCall, "call ctx.all_reduce()");
  const ComputeSettingsGuard settings(group_->plan().compute);
  const std::vector<at::Tensor> mine =
      agreed_operands(*group_, kCall, values, axes.values(), [&](const at::Tensor& one) {
        return static_cast<int64_t>(internal::result_type_of(reduction, one)) * 8 + static_cast<int64_t>(reduction);
      });
  if (!axes.values().empty()) {
    return internal::reduced_over(kCall, group_->reducer(), reduction, group_->of_all_replicas(mine), axes.values());
  }
  if (num_workers() > 1) return group_->reduce(reduction, mine);
  return internal::reduced(kCall, group_->reducer(), reduction, mine);
}

at::Tensor Strategy::gather(const PerReplica<at::Tensor>& values, int64_t axis) const {
  constexpr const char* kCall = "Strategy::gather";
  const CallScope call(*group_, kCall, "call ctx.all_gather()");
  const int64_t axes[] = {axis};
  const std::vector<at::Tensor> mine =
      agreed_operands(*group_, kCall, values, axes, [](const at::Tensor&) { return int64_t{0}; });
  return internal::joined(kCall, group_->of_all_replicas(mine), axis);
}

at::Tensor Strategy::broadcast(ReplicaId from, const at::Tensor& value) const {
  constexpr const char* kCall = "Strategy::broadcast";
  const CallScope call(*group_, kCall, "call ctx.broadcast()");
  internal::agree_on_call(group_->rounds(), {.call = kCall, .step = step()}, [&](internal::Proposal& mine) {
    check_replica(from, kCall);
    if (group_->block().has(from)) internal::check_operand(kCall, value);
    mine.signature = static_cast<uint64_t>(from.value());
    mine.detail = fmt::format("{}(from replica {})", kCall, from.value());
  });
  return internal::copied(group_->of_replica(from, value));
}

}  // namespace lockstep
