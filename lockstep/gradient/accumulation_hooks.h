// Hooks behind the nodes of autograd that accumulate the gradients of variables.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline gradient {

/// Tells a listener whenever a backward has accumulated into the gradient of a variable, on the thread of that
/// backward. One replica's variables; all calls come from its thread. Destroy it there too, or while it is at rest. No
/// other thread computes gradients of the variables meanwhile.
class AccumulationHooks {
 public:
  /// `gradient` is the variable's .grad().
  using Listener = std::function<void(std::size_t i, const at::Tensor& gradient)>;

  AccumulationHooks() = default;
  ~AccumulationHooks() { end(); }
  AccumulationHooks(const AccumulationHooks&) = delete;
  AccumulationHooks& operator=(const AccumulationHooks&) = delete;
  AccumulationHooks(AccumulationHooks&&) = default;
  AccumulationHooks& operator=(AccumulationHooks&&) = delete;

  /// From now on `listener` is told of local replica r's component of each variable that requires a gradient.
  void begin(std::span<const std::shared_ptr<VariableState>> variables, int64_t r, Listener listener);
  /// It is told of nothing more.
  void end();
  bool is_on() const { return slot_ && slot_->listener; }

 private:
  class Hook;
  struct Slot {
    Listener listener;
  };

  // A node lives as long as a graph or `accumulators_` has it. One that lives on keeps its hook for the next begin().
  std::shared_ptr<Slot> slot_;                       // shared with the hooks
  std::vector<std::shared_ptr<void>> accumulators_;  // handles of the nodes, which keep the hooks
};

}  // namespace lockstep::internal::gradient
