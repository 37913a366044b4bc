#include "lockstep/variable/kinds/mirrored_state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/reduce/kernels.h"
#include "lockstep/replica/pool/compute_settings.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/kinds/written_memory.h"

namespace lockstep::internal::inline variable {

namespace {

constexpr const char* kRemedy =
    "let Lockstep write it: an optimizer from make_optimizer, Variable::assign or Replicated::load (a torch::optim "
    "optimizer steps one replica alone, without the others' gradients); where forward writes it, as an Embedding with "
    "max_norm does, leave that out and write it between steps by Strategy::update; assign or load it now to go on";

}  // namespace

MirroredState::MirroredState(std::shared_ptr<ReplicaGroup> group, std::shared_ptr<VariableCounts> counts,
                             VariableOptions options, const std::vector<at::Tensor>& components, const Origin& origin)
    : VariableState(std::move(group), std::move(counts), std::move(options), components,
                    VariableMemory(components, /*has_checksums=*/!origin.slot),
                    origin.slot ? Watch::kNothing : Watch::kWrites, origin) {}

MirroredState::~MirroredState() {
  if (damaged_.load(std::memory_order_relaxed)) --counts()->damaged;
  if (own_.defined()) --counts()->stand_ins;
  take_before();
}

at::Tensor MirroredState::take_before() noexcept {
  if (before_.defined()) --counts()->written;
  return std::exchange(before_, at::Tensor());
}

void MirroredState::bind(std::vector<at::Tensor> copies) {
  check_memory();
  memory_.bind(std::move(copies));
  settle();
}

at::Tensor MirroredState::read() const {
  const at::NoGradGuard no_grad;
  require_sound();
  require_whole("Variable::read");
  return copies().front().clone();
}

void MirroredState::write(const at::Tensor& value) {
  require_own_value("a write");
  // Invariant: all copies are written from one source, which no write changes; so they are equal afterwards.
  const at::Tensor source = WrittenMemory(*this).copied_if_inside(value);
  set([&](at::Tensor& copy) { copy.copy_(source); });
}

void MirroredState::write_bytes(int64_t begin, std::span<const std::byte> bytes) {
  require_own_value("a write");
  set([&](at::Tensor& copy) { std::ranges::copy(bytes, host_bytes_to_write(copy).begin() + begin); });
}

void MirroredState::change(FunctionRef<void(at::Tensor&)> fn) {
  require_own_value("a change");
  require_whole("a change of the value");
  check_memory();
  set(fn);
}

void MirroredState::stand_in(const at::Tensor& value) {
  require_own_value("a second swap");
  require_whole("MovingAverage::swap");
  check_memory();  // its own value is kept as the library left it, or not at all
  const ComputeSettingsGuard settings(group()->plan().compute);
  const at::NoGradGuard no_grad;
  at::Tensor own = copies().front().clone();
  write(value);
  own_ = std::move(own);
  ++counts()->stand_ins;
}

void MirroredState::end_stand_in() noexcept {
  if (!own_.defined()) return;
  const at::Tensor own = std::exchange(own_, at::Tensor());
  --counts()->stand_ins;
  // What a failed run puts back is the variable's own value as well, so nothing has to be kept for it here.
  without_throwing(
      [&] {
        leave_halves();  // it has left, since stand_in() wrote
        for (const at::Tensor& copy : copies()) copy_bytes(copy, own);
        settle();
      },
      "its own value could not be restored after a moving average");
}

void MirroredState::require_own_value(const char* call) const {
  if (!own_.defined()) return;
  throw UsageError("LS-AVERAGE-SWAPPED",
                   fmt::format("{} of variable '{}' was asked for while its average stands in for it", call, name()),
                   "let the scope that MovingAverage::swap gave end first: then the variable has its own value back");
}

void MirroredState::set(FunctionRef<void(at::Tensor&)> fn) {
  const at::NoGradGuard no_grad;
  const bool sound = !damaged_.load(std::memory_order_relaxed);
  if (group()->running() && !before_.defined() && sound) {
    before_ = copies().front().clone();
    before_is_sliced_ = is_sliced();
    ++counts()->written;
  }
  leave_halves();
  for (at::Tensor copy : copies()) fn(copy);
  settle();
  slicing_ = Slicing::kWritten;
}

void MirroredState::leave_halves() {
  const void* const before = address_of(copies().front());
  if (!memory_.leave_halves()) return;
  for (int64_t r = 0; r < num_components(); ++r) {
    Component& component = component_at(r);
    if (component.address == before) component.moved();
  }
}

void MirroredState::settle() {
  for (int64_t r = 0; r < num_components(); ++r) {
    put_back(r);
    component(r).unsafeGetTensorImpl()->bump_version();
    component_at(r).expect();
  }
  memory_.renew_checksums();
  forget_autocast_weights();
  if (damaged_.exchange(false, std::memory_order_acq_rel)) --counts()->damaged;
}

void MirroredState::undo_run() noexcept {
  without_throwing([&] { undo(); }, "it could not be rolled back after a failed run");
}

void MirroredState::undo() {
  const at::Tensor before = take_before();
  if (!before.defined()) return;
  leave_halves();
  for (const at::Tensor& copy : copies()) copy_bytes(copy, before);
  settle();
  slicing_ = before_is_sliced_ ? Slicing::kFilled : Slicing::kWritten;
}

void MirroredState::without_throwing(FunctionRef<void()> fn, const char* failure) noexcept {
  try {
    try {
      fn();
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      mark_damaged(failure);
      log(LogLevel::kError, fmt::format("variable '{}': {}: {}", name(), failure, message_of(error)));
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): there is no memory to log it either
  }
}

void MirroredState::throw_not_as_left(int64_t r) {
  const Component& left = component_at(r);
  const at::Tensor& component = left.tensor;
  std::string cause;
  const char* author = "";
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
    author = ", as forward does in an Embedding with max_norm, or an optimizer of torch::optim";
  }
  mark_damaged(
      fmt::format("on replica {} {} by something other than Lockstep{}", group()->first_replica() + r, cause, author));
  throw_damaged();
}

void MirroredState::check_memory() {
  require_sound();
  if (const auto copy = memory_.foreign_copy()) {
    damaged_in_memory(*copy);
    throw_damaged();
  }
}

std::vector<int64_t> MirroredState::replicas_of(std::size_t copy) const {
  if (is_in_halves()) return memory_.replicas_of_halves();
  std::vector<int64_t> replicas = memory_.replicas_of(copy);
  for (int64_t& replica : replicas) replica += group()->first_replica();
  return replicas;
}

void MirroredState::damaged_in_memory(std::size_t copy) { damaged_in_memory_of(replicas_of(copy)); }

void MirroredState::damaged_in_memory_of(const std::vector<int64_t>& replicas) {
  const std::string where = replicas.size() == 1
                                ? fmt::format("on replica {}", replicas.front())
                                : fmt::format("on one of the replicas {}, which share it", fmt::join(replicas, ", "));
  mark_damaged(
      fmt::format("its memory was written by something other than Lockstep (through .data(), a raw pointer, or "
                  "torch::optim::SGD), {}",
                  where));
}

void MirroredState::mark_damaged(std::string_view cause) {
  const std::lock_guard<std::mutex> lock(damage_mutex_);
  if (damaged_.load(std::memory_order_relaxed)) return;  // the first finding stands
  damaged_.store(true, std::memory_order_release);       // also where there is no memory for the text
  ++counts()->damaged;
  damage_ = fmt::format("variable '{}': {}, noticed at step {}", name(), cause, group()->step());
}

void MirroredState::throw_damaged() const {
  std::string text;
  {
    const std::lock_guard<std::mutex> lock(damage_mutex_);
    text = damage_;
  }
  throw DivergenceError("LS-FOREIGN-WRITE", text, kRemedy);
}

}  // namespace lockstep::internal::variable
