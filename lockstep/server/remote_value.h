// What a scheduled step will give.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/server/protocol/messages.h"
#include "lockstep/server/step_value.h"

namespace lockstep {

namespace internal::inline server {
struct ScheduledStep;
/// Waits until the step is decided; see RemoteValue::get.
Payload wait_for_result(const std::shared_ptr<ScheduledStep>& step);
/// The result of a step that counts already.
Payload result_at_hand(const ScheduledStep& step);
[[noreturn]] void throw_empty_remote_value();
}  // namespace internal::server

/// A handle to what a scheduled step returns; copies mean the same step. It may outlive the coordinator. Any thread.
template <class T>
class RemoteValue {
 public:
  RemoteValue() = default;

  /// Waits until the step counts, and gives what it returned. Throws the run's first error, if nobody has got it yet;
  /// otherwise a CancelledError where the step was closed, and the step's own error where it failed.
  T get() const {
    if (!step_) internal::throw_empty_remote_value();
    const internal::Payload result = internal::wait_for_result(step_);
    if constexpr (!std::is_void_v<T>)
      return internal::from_step_value<T>(*static_cast<const internal::StepValue*>(result.get()));
  }

  /// For the library's own use.
  explicit RemoteValue(std::shared_ptr<internal::ScheduledStep> step) : step_(std::move(step)) {}
  const std::shared_ptr<internal::ScheduledStep>& scheduled() const { return step_; }

 private:
  std::shared_ptr<internal::ScheduledStep> step_;
};

}  // namespace lockstep
