#include "lockstep/data/split.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/data/batch_rows.h"
#include "lockstep/data/plan.h"
#include "lockstep/data/rows.h"

namespace lockstep::internal {

namespace {

/// A copy of some rows. It is not a view, because the last bits of a matrix product may depend on where its operands
/// begin.
at::Tensor rows(const at::Tensor& whole, const Span& span) {
  if (!whole.defined()) return {};
  return whole.detach().narrow(0, span.begin, span.size()).clone(at::MemoryFormat::Contiguous);
}

}  // namespace

PerReplica<Batch> split(const at::Tensor& input, const at::Tensor& target, int64_t num_replicas,
                        ReplicaId first_replica, int64_t num_local_replicas) {
  check_rows(input, "Strategy::split", "the input");
  if (target.defined()) check_rows(target, "Strategy::split", "the target");
  const int64_t size = rows_of(input);
  if (target.defined() && rows_of(target) != size) {
    throw UsageError(
        "LS-BATCH",
        fmt::format("Strategy::split was given an input {} and a target {}", text_of(input), text_of(target)),
        "give both one row for each sample");
  }
  const at::NoGradGuard no_grad;
  // Workers compare it before they use the parts.
  const std::string origin = num_local_replicas < num_replicas
                                 ? fmt::format("a split of {} with the digest {:016x}", counted(size, "row"),
                                               mixed(digest_of(input), digest_of(target)))
                                 : "";
  std::vector<Batch> parts;
  for (int64_t r = 0; r < num_local_replicas; ++r) {
    const Span span = part_of({0, size}, first_replica + r, num_replicas);
    parts.push_back({.input = rows(input, span),
                     .target = rows(target, span),
                     .ids = at::arange(span.begin, span.end, at::kLong),
                     .global_size = size,
                     .origin = origin});
  }
  return PerReplica<Batch>(std::move(parts), first_replica);
}

}  // namespace lockstep::internal
