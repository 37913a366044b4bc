#include "lockstep/variable/variable_state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/core/checksum.h"
#include "lockstep/core/error.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/reduce/across_replicas.h"
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
  return origin.apart ? Watch::kMemory : Watch::kNothing;
}

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.device() == b.device() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
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
  if (!on_write()) {
    components_before_.resize(components_.size());
    return;
  }
  for (const Component& component : components_) {
    const void* address = address_of(component.tensor);
    const auto known = std::find_if(copies_.begin(), copies_.end(),
                                    [&](const at::Tensor& copy) { return address_of(copy) == address; });
    copy_of_.push_back(static_cast<std::size_t>(known - copies_.begin()));
    if (known == copies_.end()) copies_.push_back(component.tensor.variable_data());
  }
  if (is_slot()) return;
  for (std::size_t copy = 0; copy < copies_.size(); ++copy) {
    checksums_.emplace_back(static_cast<std::size_t>(blocks_of(bytes())));
  }
  renew_checksums();
}

VariableState::~VariableState() {
  if (damaged_.load(std::memory_order_relaxed)) --group_->damaged_variables();
  if (own_.defined()) --group_->stand_ins();
  take_before();
}

at::Tensor VariableState::take_before() {
  if (before_.defined()) --group_->written_variables();
  return std::exchange(before_, at::Tensor());
}

at::Tensor VariableState::read() const {
  const at::NoGradGuard no_grad;
  if (on_write()) {
    require_sound();
    return copies_.front().clone();
  }
  switch (options_.aggregation) {
    case VariableAggregation::kNone:
      throw UsageError(fmt::format("variable '{}' is on-read without aggregation: it has no one value to read", name()),
                       "read components(), or create it with kSum, kMean or kOnlyFirstReplica");
    case VariableAggregation::kOnlyFirstReplica: return component(0).detach().clone();
    case VariableAggregation::kSum:
    case VariableAggregation::kMean: break;
  }
  std::vector<at::Tensor> values;
  for (const Component& one : components_) values.push_back(one.tensor.detach());
  const bool sum = options_.aggregation == VariableAggregation::kSum;
  return reading_of(group_->reducer(), sum ? Reduction::kSum : Reduction::kMean, values);
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
  const at::NoGradGuard no_grad;
  at::Tensor own = copies_.front().clone();
  write(value);
  own_ = std::move(own);
  ++group_->stand_ins();
}

void VariableState::end_stand_in() noexcept {
  if (!own_.defined()) return;
  const at::Tensor own = std::exchange(own_, at::Tensor());
  --group_->stand_ins();
  set([&](at::Tensor& copy) { copy.copy_(own); });
}

void VariableState::require_own_value(const char* call) const {
  if (!own_.defined()) return;
  throw UsageError(fmt::format("{} of variable '{}' was asked for while its average stands in for it", call, name()),
                   "let the scope that MovingAverage::swap gave end first: then the variable has its own value back");
}

void VariableState::set(FunctionRef<void(at::Tensor&)> fn) {
  const at::NoGradGuard no_grad;
  const bool sound = !damaged_.load(std::memory_order_relaxed);
  if (group_->running() && !before_.defined() && sound) {
    before_ = copies_.front().clone();
    ++group_->written_variables();
  }
  for (at::Tensor& copy : copies_) fn(copy);
  for (int64_t r = 0; r < num_components(); ++r) {
    at::Tensor& component = components_[r].tensor;
    const at::Tensor& copy = copies_[copy_of_[r]];
    // Somebody may have given the component other memory, dtype or strides: the library's copy is put back.
    if (address_of(component) != address_of(copy) || !same_layout(component, copy)) component.set_data(copy);
    component.unsafeGetTensorImpl()->bump_version();
    components_[r].expect();
  }
  renew_checksums();
  forget_autocast_weights();
  if (damaged_.exchange(false, std::memory_order_acq_rel)) --group_->damaged_variables();
}

void VariableState::write_component(int64_t r, const at::Tensor& value) const {
  const at::NoGradGuard no_grad;
  at::Tensor target = component(r);
  target.copy_(value);
}

void VariableState::average_components() const {
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

void VariableState::begin_run(int64_t r) {
  if (on_write()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor& now = component(r);
  at::Tensor& before = components_before_[r];
  const bool alike = before.defined() && before.sizes() == now.sizes() && before.scalar_type() == now.scalar_type() &&
                     now.is_contiguous();
  if (alike) {
    std::memcpy(before.data_ptr(), address_of(now), static_cast<std::size_t>(now.nbytes()));
  } else {
    before = now.detach().clone(at::MemoryFormat::Contiguous);
  }
}

void VariableState::undo_run() {
  if (std::exchange(stepped_, false)) return;
  if (on_write()) {
    if (const at::Tensor before = take_before(); before.defined()) set([&](at::Tensor& copy) { copy.copy_(before); });
    return;
  }
  const at::NoGradGuard no_grad;
  for (std::size_t r = 0; r < components_.size(); ++r) {
    at::Tensor& component = components_[r].tensor;
    const at::Tensor& before = components_before_[r];
    if (!before.defined()) continue;  // made while the run was under way, with a module
    if (before.sizes() == component.sizes() && before.scalar_type() == component.scalar_type()) {
      component.copy_(before);
    } else {
      component.set_data(before.clone());
    }
  }
}

void VariableState::throw_not_as_left(int64_t r) {
  const Component& left = components_[r];
  const at::Tensor& component = left.tensor;
  if (left.watch == Watch::kMemory) {
    throw DivergenceError(
        fmt::format(
            "variable '{}', which each replica trains apart: on replica {} it was given other memory (set_data, "
            ".to() or an assignment to .data())",
            name(), group_->first_replica() + r),
        "write it in place, without gradient, or by Variable::assign");
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
  if (checksums_.empty()) return;
  require_sound();
  for (std::size_t copy = 0; copy < copies_.size(); ++copy) {
    const char* memory = static_cast<const char*>(address_of(copies_[copy]));
    for (int64_t block = 0; block < blocks_of(bytes()); ++block) {
      const int64_t offset = block * kBlockBytes;
      if (checksum(memory + offset, std::min(kBlockBytes, bytes() - offset)) != checksums_[copy][block]) {
        damaged_in_memory();
        throw_damaged();
      }
    }
  }
}

void VariableState::damaged_in_memory() {
  mark_damaged(
      "its memory was written by something other than Lockstep (through .data(), a raw pointer, or torch::optim::SGD), "
      "on "
      "a replica that cannot be told");
}

void VariableState::renew_checksums() {
  if (checksums_.empty()) return;
  for (std::size_t copy = 0; copy < copies_.size(); ++copy) {
    const char* memory = static_cast<const char*>(address_of(copies_[copy]));
    for (int64_t block = 0; block < blocks_of(bytes()); ++block) {
      const int64_t offset = block * kBlockBytes;
      checksums_[copy][block] = checksum(memory + offset, std::min(kBlockBytes, bytes() - offset));
    }
  }
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
  throw DivergenceError(text, kRemedy);
}

namespace {

/// The real part where `like` is real, the value itself where not: LibTorch's conversion would warn of an imaginary
/// part that `misfit` has looked at.
at::Tensor real_part_for(const at::Tensor& like, const at::Tensor& value) {
  return value.is_complex() && !like.is_complex() ? at::real(value) : value;
}

}  // namespace

std::string misfit(const VariableState& variable, const at::Tensor& value) {
  if (!value.defined()) return "is undefined";
  if (value.layout() != at::kStrided) return "is sparse";
  const at::Tensor& like = variable.like();
  if (value.sizes() != like.sizes()) {
    return fmt::format("has shape [{}] instead of [{}]", fmt::join(value.sizes(), ", "), fmt::join(like.sizes(), ", "));
  }
  const auto refused = [&] {
    return fmt::format("has {} values that {} cannot hold", c10::toString(value.scalar_type()),
                       c10::toString(like.scalar_type()));
  };
  const at::NoGradGuard no_grad;
  const at::Tensor given = real_part_for(like, value);
  if (!given.is_same(value) && at::imag(value).count_nonzero().item<int64_t>() != 0) return refused();
  // LibTorch's rule of what an operation in place may convert; values that come back unchanged may be converted too.
  if (c10::canCast(given.scalar_type(), like.scalar_type())) return "";
  return given.to(like.scalar_type()).to(given.scalar_type()).equal(given) ? "" : refused();
}

at::Tensor value_for(const VariableState& variable, const at::Tensor& value, const char* call) {
  const at::Tensor& like = variable.like();
  const std::string why = misfit(variable, value);
  if (why.empty()) return real_part_for(like, value.detach()).to(like.device(), like.scalar_type());
  throw UsageError(
      fmt::format("{} of variable '{}' was given a tensor that {}", call, variable.name(), why),
      fmt::format("give a dense tensor of {} [{}]", c10::toString(like.scalar_type()), fmt::join(like.sizes(), ", ")));
}

void fill_with_additive_identity(at::Tensor& values) {
  const at::NoGradGuard no_grad;
  const at::ScalarType type = values.scalar_type();
  if (at::isComplexType(type)) {
    values.fill_(c10::complex<double>(-0.0, -0.0));
  } else if (at::isFloatingType(type)) {
    values.fill_(-0.0);
  } else {
    values.zero_();
  }
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
