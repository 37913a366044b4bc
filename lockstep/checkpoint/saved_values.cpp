#include "lockstep/checkpoint/saved_values.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "lockstep/checkpoint/formats/aggregation_names.h"
#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/checkpoint/formats/tensor_file.h"
#include "lockstep/checkpoint/take_image.h"
#include "lockstep/reduce/across_replicas.h"
#include "lockstep/reduce/operands.h"
#include "lockstep/reduce/reducer.h"

namespace lockstep::internal::inline checkpoint {

namespace {

using Tensors = std::vector<at::Tensor>;

/// Dtype and shape of a tensor.
std::string form_of(const at::Tensor& value) { return shape_text(value); }

/// The components of other replicas than those that were saved: see RestoreOptions::allow_other_replicas.
Tensors dealt_anew(const Tensors& saved, int64_t replicas, VariableAggregation aggregation) {
  const at::NoGradGuard no_grad;
  const at::Tensor whole = value_of_all(saved, aggregation);
  const bool is_sum = aggregation == VariableAggregation::kSum;
  Tensors dealt;
  for (int64_t r = 0; r < replicas; ++r) dealt.push_back(is_sum && r > 0 ? at::zeros_like(whole) : whole.clone());
  return dealt;
}

bool is_variable(const StateItem& item) {
  return item.kind == StateItem::Kind::kMirrored || item.kind == StateItem::Kind::kOnRead ||
         item.kind == StateItem::Kind::kSlot;
}

}  // namespace

const char* aggregation_text(VariableAggregation aggregation) {
  return kAggregationNames.at(static_cast<std::size_t>(aggregation)).data();
}

VariableAggregation aggregation_of(const std::string& text, const std::string& what) {
  if (text.empty()) return VariableAggregation::kMean;
  const auto* const found = std::find(kAggregationNames.begin(), kAggregationNames.end(), text);
  if (found == kAggregationNames.end()) throw_damaged(what, fmt::format("has the aggregation '{}'", shown(text)));
  return static_cast<VariableAggregation>(found - kAggregationNames.begin());
}

at::Tensor value_of_all(const Tensors& saved, VariableAggregation aggregation) {
  const at::Tensor& first = saved.front();
  const bool is_sum = aggregation == VariableAggregation::kSum;
  // Other variables have no mean; a module's own counts, of which older checkpoints say nothing, are replica 0's.
  const bool is_mean = aggregation == VariableAggregation::kMean && first.is_floating_point();
  const bool one_shape = std::all_of(saved.begin(), saved.end(), [&](const at::Tensor& one) {
    return one.sizes() == first.sizes() && one.scalar_type() == first.scalar_type();
  });
  if (!one_shape || (!is_sum && !is_mean)) return first;
  return reading_of(TreeReducer(), is_sum ? Reduction::kSum : Reduction::kMean, saved);
}

std::map<KindAndName, Saved> saved_of(const Image& image) {
  std::map<KindAndName, Saved> saved;
  for (const ImageTensor& one : image.tensors) {
    Saved& item = saved[{one.kind, one.name}];
    item.per_replica = one.replica >= 0;
    item.values.push_back(one.value);
  }
  for (auto& [key, item] : saved) {
    if (std::none_of(item.values.begin(), item.values.end(), [](const at::Tensor& one) { return one.defined(); }))
      item.values.clear();
  }
  for (const RecordedNumbers& one : image.run.numbers) {
    const bool is_list =
        one.kind == kind_text(StateItem::Kind::kCursor) || one.kind == kind_text(StateItem::Kind::kRule);
    at::Tensor value;
    if (one.real) {
      value = at::scalar_tensor(*one.real, at::kDouble);
    } else if (is_list || one.integers.size() != 1) {
      value = at::tensor(one.integers, at::kLong);
    } else {
      value = at::scalar_tensor(one.integers.front(), at::kLong);
    }
    saved[{one.kind, one.name}] = {{value}, false};
  }
  return saved;
}

Tensors values_here(const Saved& saved, bool per_replica, const Strategy& strategy, VariableAggregation aggregation) {
  if (!per_replica || !saved.per_replica) return saved.values;
  const int64_t replicas = strategy.num_replicas();
  Tensors all = saved.values;
  if (static_cast<int64_t>(all.size()) != replicas) all = dealt_anew(all, replicas, aggregation);
  Tensors mine;
  strategy.per_replica([&](ReplicaId r) {
    mine.push_back(all[static_cast<std::size_t>(r.value())]);
    return 0;
  });
  return mine;
}

std::string misfit_text(const StateItem& item, const Saved& saved, const Tensors& values, const Variable* variable) {
  if (saved.per_replica != item.per_replica) {
    return fmt::format("'{}' has {} in the checkpoint, and {} here", shown(item.name),
                       saved.per_replica ? "a value of each replica" : "one value",
                       item.per_replica ? "a value of each replica" : "one value");
  }
  if (item.kind == StateItem::Kind::kCursor) return {};  // how many numbers it has depends on the place
  std::string expected;
  if (variable != nullptr && is_variable(item)) {
    expected = fmt::format("{} [{}]", dtype_name(variable->dtype()), fmt::join(variable->sizes(), ", "));
  } else {
    expected = form_of(item.read().front());
  }
  for (const at::Tensor& value : values) {
    if (form_of(value) == expected) continue;
    return fmt::format("'{}' is {} in the checkpoint, and {} here", shown(item.name), form_of(value), expected);
  }
  return {};
}

}  // namespace lockstep::internal::checkpoint
