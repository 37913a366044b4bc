#include "lockstep/variable/variable_state.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/variable/kinds/mirrored_state.h"
#include "lockstep/variable/kinds/on_read_state.h"

namespace lockstep::internal::inline variable {

namespace {

std::vector<Component> watched(std::vector<at::Tensor> tensors, Watch watch) {
  std::vector<Component> components;
  for (at::Tensor& tensor : tensors) {
    Component& component = components.emplace_back();
    component.tensor = std::move(tensor);
    component.watch = watch;
    component.expect();
  }
  return components;
}

[[noreturn]] void throw_other_kind(const VariableState& variable) {
  throw InternalError(
      "LS-INTERNAL",
      fmt::format("variable '{}', {}, was taken for the other kind", variable.name(), kind_of(variable.options())),
      "please report it");
}

}  // namespace

VariableState::VariableState(std::shared_ptr<ReplicaGroup> group, std::shared_ptr<VariableCounts> counts,
                             VariableOptions options, std::vector<at::Tensor> components, VariableMemory memory,
                             Watch watch, Origin origin)
    : components_(watched(std::move(components), watch)),
      like_(component(0).variable_data()),
      memory_(std::move(memory)),
      on_write_(options.synchronization == VariableSynchronization::kOnWrite),
      group_(std::move(group)),
      counts_(std::move(counts)),
      options_(std::move(options)),
      origin_(std::move(origin)) {}

MirroredState& VariableState::as_mirrored() {
  if (!on_write_) throw_other_kind(*this);
  return static_cast<MirroredState&>(*this);
}

OnReadState& VariableState::as_on_read() {
  if (on_write_) throw_other_kind(*this);
  return static_cast<OnReadState&>(*this);
}

std::string VariableState::where() const {
  if (is_in_halves())
    return fmt::format("{}, of the host's workers", origin_.devices.empty() ? "cpu" : origin_.devices.front());
  if (is_sliced()) return fmt::format("{}, in slices", origin_.devices.empty() ? "cpu" : origin_.devices.front());
  if (origin_.devices.empty()) return like_.device().str();
  std::vector<std::string> distinct;
  for (const std::string& device : origin_.devices) {
    if (std::find(distinct.begin(), distinct.end(), device) == distinct.end()) distinct.push_back(device);
  }
  return fmt::format("{}", fmt::join(distinct, ", "));
}

void VariableState::require_whole(const char* call) const {
  if (!is_sliced()) return;
  throw UsageError(
      "LS-SLOT-SLICED",
      fmt::format("{} needs all of slot '{}', of which this worker has its own slices alone", call, name()),
      "call Optimizer::gather_slots() on all workers before; where the optimizer is gone, let go of its slots too");
}

namespace {

/// Asking a tensor without autograd's data for its gradient would allocate them.
bool has_gradient_of_its_own(const c10::TensorImpl& tensor) {
  return tensor.autograd_meta() && tensor.grad().defined();
}

}  // namespace

void VariableState::drop_gradients() noexcept {
  for (Component& component : components_) {
    c10::TensorImpl* const tensor = component.tensor.unsafeGetTensorImpl();
    if (has_gradient_of_its_own(*tensor)) tensor->mutable_grad() = at::Tensor();
  }
}

bool VariableState::has_gradient() const noexcept {
  return std::any_of(components_.begin(), components_.end(), [](const Component& component) {
    return has_gradient_of_its_own(*component.tensor.unsafeGetTensorImpl());
  });
}

void VariableState::put_back(int64_t r) {
  at::Tensor& component = component_at(r).tensor;
  const at::Tensor& copy = memory_.copy_of(r);
  if (address_of(component) != address_of(copy) || !same_layout(component, copy)) component.set_data(copy);
}

std::shared_ptr<VariableState> make_variable_state(std::shared_ptr<ReplicaGroup> group,
                                                   std::shared_ptr<VariableCounts> counts, VariableOptions options,
                                                   const std::vector<at::Tensor>& components,
                                                   const VariableState::Origin& origin) {
  if (options.synchronization == VariableSynchronization::kOnRead) {
    return std::make_shared<OnReadState>(std::move(group), std::move(counts), std::move(options), components, origin);
  }
  return std::make_shared<MirroredState>(std::move(group), std::move(counts), std::move(options), components, origin);
}

std::string kind_of(const VariableOptions& options) {
  const char* const kind = options.synchronization == VariableSynchronization::kOnRead ? "on-read" : "mirrored";
  switch (options.aggregation) {
    case VariableAggregation::kNone: return kind;
    case VariableAggregation::kSum: return fmt::format("{} sum", kind);
    case VariableAggregation::kMean: return fmt::format("{} mean", kind);
    case VariableAggregation::kOnlyFirstReplica: return fmt::format("{} first", kind);
  }
  return kind;
}

std::string kind_of(const VariableState& variable) {
  switch (variable.buffers()) {
    case Buffers::kAuto:
    case Buffers::kMean: return kind_of(variable.options());
    case Buffers::kFirstReplica: return "buffer first";
    case Buffers::kSum: return "buffer sum";
    case Buffers::kEqual: return "buffer equal";
  }
  return kind_of(variable.options());
}

}  // namespace lockstep::internal::variable
