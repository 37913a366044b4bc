#include "lockstep/variable/variable_state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/reduce/across_replicas.h"
#include "lockstep/replica/compute_settings.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal {

namespace {

constexpr const char* kRemedy =
    "let Lockstep write it: an optimizer from make_optimizer, Variable::assign or Replicated::load (a torch::optim "
    "optimizer steps one replica alone, without the others' gradients); assign or load it now to go on";

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

Watch watch_of(bool on_write, const VariableState::Origin& origin) {
  if (on_write) return origin.slot ? Watch::kNothing : Watch::kWrites;
  return origin.local ? Watch::kMemory : Watch::kNothing;
}

std::vector<at::Tensor> tensors_of(const std::vector<Component>& components) {
  std::vector<at::Tensor> tensors;
  for (const Component& component : components) tensors.push_back(component.tensor);
  return tensors;
}

/// The bytes of one dense tensor over those of another of the same layout; nothing is allocated.
void copy_bytes(const at::Tensor& to, const at::Tensor& from) {
  if (from.nbytes() > 0) std::memcpy(to.data_ptr(), address_of(from), from.nbytes());
}

}  // namespace

VariableState::VariableState(std::shared_ptr<ReplicaGroup> group, VariableOptions options,
                             std::vector<at::Tensor> components, Origin origin)
    : components_(watched(std::move(components),
                          watch_of(options.synchronization == VariableSynchronization::kOnWrite, origin))),
      like_(component(0).variable_data()),
      on_write_(options.synchronization == VariableSynchronization::kOnWrite),
      group_(std::move(group)),
      options_(std::move(options)),
      origin_(std::move(origin)) {
  if (!on_write()) snapshots_.resize(components_.size());
  if (on_write() || is_trained_locally()) {
    memory_ = VariableMemory(tensors_of(components_), /*has_checksums=*/on_write() && !is_slot());
  }
}

VariableState::~VariableState() {
  if (damaged_.load(std::memory_order_relaxed)) --group_->damaged_variables();
  if (own_.defined()) --group_->stand_ins();
  take_before();
}

at::Tensor VariableState::take_before() noexcept {
  if (before_.defined()) --group_->written_variables();
  return std::exchange(before_, at::Tensor());
}

void VariableState::bind(std::vector<at::Tensor> copies) {
  check_memory();
  memory_.bind(std::move(copies));
  settle();
}

at::Tensor VariableState::read() const {
  const at::NoGradGuard no_grad;
  if (on_write()) {
    require_sound();
    return copies().front().clone();
  }
  if (options_.aggregation == VariableAggregation::kNone) {
    throw UsageError("LS-NO-AGGREGATION",
                     fmt::format("variable '{}' is on-read without aggregation: it has no one value to read", name()),
                     "read components(), or create it with kSum, kMean or kOnlyFirstReplica");
  }
  const at::Tensor first = plain(component(0));
  if (options_.aggregation == VariableAggregation::kOnlyFirstReplica) return group_->of_replica(0, first).clone();
  require_alike_components();
  std::vector<at::Tensor> values;
  for (const Component& one : components_) values.push_back(plain(one.tensor));
  const bool sum = options_.aggregation == VariableAggregation::kSum;
  return reading_of(group_->reducer(), sum ? Reduction::kSum : Reduction::kMean, group_->of_all_replicas(values));
}

void VariableState::require_alike_components() const {
  const at::Tensor& first = component(0);
  for (int64_t r = 1; r < num_components(); ++r) {
    const at::Tensor& other = component(r);
    if (other.sizes() == first.sizes() && other.scalar_type() == first.scalar_type()) continue;
    const auto text = [](const at::Tensor& one) {
      return fmt::format("{} [{}]", c10::toString(one.scalar_type()), fmt::join(one.sizes(), ", "));
    };
    throw UsageError("LS-NOT-ALIKE",
                     fmt::format("variable '{}' has become {} on replica {} and {} on replica {}", name(), text(first),
                                 group_->first_replica().value(), text(other), group_->first_replica() + r),
                     "let all replicas change its shape and dtype in the same way, or read components()");
  }
}

void VariableState::write(const at::Tensor& value) {
  require_own_value("a write");
  set([&](at::Tensor& copy) { copy.copy_(value); });
}

void VariableState::change(FunctionRef<void(at::Tensor&)> fn) {
  require_own_value("a change");
  check_memory();
  set(fn);
}

void VariableState::stand_in(const at::Tensor& value) {
  require_own_value("a second swap");
  check_memory();  // its own value is kept as the library left it, or not at all
  const ComputeSettingsGuard settings(group_->plan().compute);
  const at::NoGradGuard no_grad;
  at::Tensor own = copies().front().clone();
  write(value);
  own_ = std::move(own);
  ++group_->stand_ins();
}

void VariableState::end_stand_in() noexcept {
  if (!own_.defined()) return;
  const at::Tensor own = std::exchange(own_, at::Tensor());
  --group_->stand_ins();
  // What a failed run puts back is the variable's own value as well, so nothing has to be kept for it here.
  for (const at::Tensor& copy : copies()) copy_bytes(copy, own);
  without_throwing([&] { settle(); }, "after a moving average it has not its own value back");
}

void VariableState::require_own_value(const char* call) const {
  if (!own_.defined()) return;
  throw UsageError("LS-AVERAGE-SWAPPED",
                   fmt::format("{} of variable '{}' was asked for while its average stands in for it", call, name()),
                   "let the scope that MovingAverage::swap gave end first: then the variable has its own value back");
}

void VariableState::set(FunctionRef<void(at::Tensor&)> fn) {
  const at::NoGradGuard no_grad;
  const bool sound = !damaged_.load(std::memory_order_relaxed);
  if (group_->running() && !before_.defined() && sound) {
    before_ = copies().front().clone();
    ++group_->written_variables();
  }
  for (at::Tensor copy : copies()) fn(copy);
  settle();
}

void VariableState::settle() {
  for (int64_t r = 0; r < num_components(); ++r) {
    put_back(r);
    components_[r].tensor.unsafeGetTensorImpl()->bump_version();
    components_[r].expect();
  }
  memory_.renew_checksums();
  forget_autocast_weights();
  if (damaged_.exchange(false, std::memory_order_acq_rel)) --group_->damaged_variables();
}

void VariableState::put_back(int64_t r) {
  at::Tensor& component = components_[r].tensor;
  const at::Tensor& copy = memory_.copy_of(r);
  if (address_of(component) != address_of(copy) || !same_layout(component, copy)) component.set_data(copy);
}

void VariableState::write_component(int64_t r, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  at::Tensor& target = components_[r].tensor;
  if (is_trained_locally()) {
    put_back(r);
  } else if (target.sizes() != value.sizes() || elements_overlap(target)) {
    // It grew in training, or elements of it share memory, so that not every value fits there.
    target.set_data(value.to(target.options(), /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous));
    return;
  }
  target.copy_(value);
  components_[r].expect();
}

void VariableState::average_components() {
  const ComputeSettingsGuard settings(group_->plan().compute);
  const at::Tensor mean = read();
  for (int64_t r = 0; r < num_components(); ++r) write_component(r, mean);
}

std::string VariableState::where() const {
  if (origin_.devices.empty()) return like_.device().str();
  std::vector<std::string> distinct;
  for (const std::string& device : origin_.devices) {
    if (std::find(distinct.begin(), distinct.end(), device) == distinct.end()) distinct.push_back(device);
  }
  return fmt::format("{}", fmt::join(distinct, ", "));
}

void VariableState::undo_run() noexcept {
  without_throwing([&] { undo(); }, "after a failed run it could not be put back");
}

void VariableState::without_throwing(FunctionRef<void()> fn, const char* failure) noexcept {
  try {
    try {
      fn();
    } catch (const std::exception& error) {
      if (on_write()) mark_damaged(failure);
      log(LogLevel::kError, fmt::format("variable '{}': {}: {}", name(), failure, error.what()));
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): there is no memory to tell it either
  }
}

void VariableState::undo() {
  if (std::exchange(stepped_, false)) return;
  if (on_write()) {
    const at::Tensor before = take_before();
    if (!before.defined()) return;
    for (const at::Tensor& copy : copies()) copy_bytes(copy, before);
    settle();
    return;
  }
  for (std::size_t r = 0; r < components_.size(); ++r) {
    // Without a snapshot it was made while the run was under way, with a module.
    if (snapshots_[r].taken()) snapshots_[r].put_back(components_[r].tensor);
  }
}

void VariableState::drop_gradients() noexcept {
  for (Component& component : components_) {
    c10::TensorImpl* const tensor = component.tensor.unsafeGetTensorImpl();
    // Asking a tensor without autograd's data for its gradient would allocate them.
    if (tensor->autograd_meta() && tensor->grad().defined()) tensor->mutable_grad() = at::Tensor();
  }
}

void VariableState::throw_not_as_left(int64_t r) {
  const Component& left = components_[r];
  const at::Tensor& component = left.tensor;
  if (left.watch == Watch::kMemory) {
    throw DivergenceError(
        "LS-FOREIGN-WRITE",
        fmt::format("variable '{}', which each replica trains locally: on replica {} it was given other memory "
                    "(set_data, .to() or an assignment to .data())",
                    name(), group_->first_replica() + r),
        "write it in place, without gradient, or by Variable::assign; assign or load it now to go on");
  }
  std::string cause;
  if (component.scalar_type() != like_.scalar_type()) {
    cause = fmt::format("its dtype was changed from {} to {}", c10::toString(like_.scalar_type()),
                        c10::toString(component.scalar_type()));
  } else if (component.device() != like_.device()) {
    cause = fmt::format("it was moved from {} to {}", like_.device().str(), component.device().str());
  } else if (address_of(component) != left.address || !same_layout(component, like_)) {
    cause = "it was given other memory (set_data, .to() or an assignment to .data())";
  } else {
    const uint32_t times = component.unsafeGetTensorImpl()->version_counter().current_version() - left.version;
    cause = fmt::format("it was written in place {} time{}", times, times == 1 ? "" : "s");
  }
  mark_damaged(fmt::format("on replica {} {} by something other than Lockstep", group_->first_replica() + r, cause));
  throw_damaged();
}

void VariableState::check_memory() {
  require_sound();
  if (const auto copy = memory_.foreign_copy()) {
    damaged_in_memory(*copy);
    throw_damaged();
  }
}

std::string VariableState::replicas_of(std::size_t copy) const {
  std::vector<int64_t> replicas = memory_.replicas_of(copy);
  for (int64_t& replica : replicas) replica += group_->first_replica();
  if (replicas.size() == 1) return fmt::format("on replica {}", replicas.front());
  return fmt::format("on one of the replicas {}, which share it", fmt::join(replicas, ", "));
}

void VariableState::damaged_in_memory(std::size_t copy) {
  mark_damaged(
      fmt::format("its memory was written by something other than Lockstep (through .data(), a raw pointer, or "
                  "torch::optim::SGD), {}",
                  replicas_of(copy)));
}

void VariableState::mark_damaged(const std::string& cause) {
  const std::lock_guard<std::mutex> lock(damage_mutex_);
  if (damaged_.load(std::memory_order_relaxed)) return;  // the first finding stands
  damage_ = fmt::format("variable '{}': {}, noticed at step {}", name(), cause, group_->step());
  damaged_.store(true, std::memory_order_release);
  ++group_->damaged_variables();
}

void VariableState::throw_damaged() const {
  std::string text;
  {
    const std::lock_guard<std::mutex> lock(damage_mutex_);
    text = damage_;
  }
  throw DivergenceError("LS-FOREIGN-WRITE", text, kRemedy);
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

}  // namespace lockstep::internal
