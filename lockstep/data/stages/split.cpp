#include "lockstep/data/stages/split.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "lockstep/data/deal/batch_rows.h"
#include "lockstep/data/deal/plan.h"
#include "lockstep/data/rows.h"

namespace lockstep::internal::inline data {

namespace {

/// A copy of some samples. It is not a view, because the last bits of a matrix product may depend on where its operands
/// begin.
at::Tensor samples_of(const at::Tensor& whole, int64_t axis, const Span& span) {
  return whole.detach().narrow(axis, span.begin, span.size()).clone(at::MemoryFormat::Contiguous);
}

at::Tensor& member(Batch& batch, const std::string& name) {
  if (name == "input") return batch.input;
  return name == "target" ? batch.target : batch.more[name];
}

/// The name as messages have it.
std::string text_of_name(const std::string& name) {
  return name == "input" || name == "target" ? "the " + name : fmt::format("'{}'", name);
}

/// The dimension of a tensor's samples, from 0.
int64_t axis_of(const NamedTensor& one, const SplitOptions& options) {
  const auto own = options.axes.find(one.name);
  const int64_t axis = own == options.axes.end() ? options.axis : own->second;
  const int64_t dims = one.tensor.dim();
  if (axis >= -dims && axis < dims) return axis < 0 ? axis + dims : axis;
  throw UsageError(
      "LS-BATCH",
      fmt::format("Strategy::split was to cut {} {} along axis {}", text_of_name(one.name), text_of(one.tensor), axis),
      "give SplitOptions::axis, or SplitOptions::axes where tensors differ in it");
}

void require_known_names(const std::vector<NamedTensor>& tensors, const SplitOptions& options) {
  for (const auto& [name, axis] : options.axes) {
    const auto is_it = [&, &wanted = name](const NamedTensor& one) { return one.name == wanted; };
    if (std::any_of(tensors.begin(), tensors.end(), is_it)) continue;
    throw UsageError("LS-OPTION", fmt::format("Strategy::split was given an axis for '{}', and no such tensor", name),
                     "name \"input\", \"target\", or a tensor of the map or list");
  }
}

/// What workers compare before they use the parts.
std::string origin_of(const std::vector<NamedTensor>& tensors, const std::vector<int64_t>& axes, int64_t size) {
  Batch whole;
  uint64_t digest = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    member(whole, tensors[i].name) = tensors[i].tensor;
    digest = mixed(digest, static_cast<uint64_t>(axes[i]));
  }
  return fmt::format("a split of {} with the digest {:016x}", counted(size, "row"), mixed(digest, digest_of(whole)));
}

}  // namespace

std::vector<NamedTensor> named(std::span<const at::Tensor> tensors) {
  std::vector<NamedTensor> all;
  for (const at::Tensor& tensor : tensors) {
    const std::size_t place = all.size();
    all.push_back({place == 0 ? "input" : place == 1 ? "target" : std::to_string(place), tensor});
  }
  return all;
}

std::vector<NamedTensor> named(const std::map<std::string, at::Tensor>& tensors) {
  std::vector<NamedTensor> all;
  for (const auto& [name, tensor] : tensors) all.push_back({name, tensor});
  // The input first, because messages compare the others with it.
  std::stable_partition(all.begin(), all.end(), [](const NamedTensor& one) { return one.name == "input"; });
  return all;
}

PerReplica<Batch> split(const std::vector<NamedTensor>& tensors, const SplitOptions& options, int64_t num_replicas,
                        ReplicaId first_replica, int64_t num_local_replicas) {
  if (tensors.empty()) {
    throw UsageError("LS-BATCH", "Strategy::split was given no tensors", "give at least one");
  }
  require_known_names(tensors, options);
  std::vector<int64_t> axes;
  int64_t size = 0;
  for (const NamedTensor& one : tensors) {
    check_rows(one.tensor, "Strategy::split", text_of_name(one.name).c_str());
    axes.push_back(axis_of(one, options));
    const int64_t own = one.tensor.size(axes.back());
    if (axes.size() == 1) size = own;
    if (own == size) continue;
    throw UsageError(
        "LS-BATCH",
        fmt::format("Strategy::split was given {} {} of {} along axis {} and {} {} of {} along axis {}",
                    text_of_name(tensors.front().name), text_of(tensors.front().tensor), counted(size, "sample"),
                    axes.front(), text_of_name(one.name), text_of(one.tensor), own, axes.back()),
        "give all the same number of samples, and SplitOptions::axes where tensors differ in the axis");
  }
  const at::NoGradGuard no_grad;
  const std::string origin = num_local_replicas < num_replicas ? origin_of(tensors, axes, size) : "";
  std::vector<Batch> parts;
  for (int64_t r = 0; r < num_local_replicas; ++r) {
    const Span span = part_of({0, size}, first_replica + r, num_replicas);
    Batch part{.ids = at::arange(span.begin, span.end, at::kLong), .global_size = size, .origin = origin};
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      member(part, tensors[i].name) = samples_of(tensors[i].tensor, axes[i], span);
    }
    parts.push_back(std::move(part));
  }
  return PerReplica<Batch>(std::move(parts), first_replica);
}

}  // namespace lockstep::internal::data
