// Whether the updates of a fit are so small that rounding takes them away again.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/optim/optimizer.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline train {

/// Looks at some elements of each variable before and after an update: those that have a gradient, and keep their
/// value, got an update below half of what their type tells apart. Where these are most, that is a finding
/// (LS-UPDATES-ROUNDED): the variable does not learn, or nearly not. It changes no bit.
class RoundedUpdates {
 public:
  /// The optimizer and the variables that it updates.
  RoundedUpdates(Strategy& strategy, Optimizer optimizer, const std::vector<Variable>& variables);

  /// Whether look() is to be called in the next step, which is this one of the fit, counted from 0: in two steps in a
  /// row, the 8th and the 9th, the 64th and the 65th, and so on; not where a learning rate is 0.
  bool looks_at(int64_t step) const;
  /// On the thread of one replica, always the same, between its backward pass and the optimizer's step. Of two calls in
  /// a row the first one remembers, and the second compares.
  void look(const ReplicaContext& ctx);

 private:
  struct Seen {
    std::size_t variable;
    std::vector<double> values;  // before the update
    std::vector<double> gradients;
  };
  void remember(const ReplicaContext& ctx);
  void compare(const ReplicaContext& ctx);

  Strategy& strategy_;
  const Optimizer optimizer_;
  const std::vector<Variable> variables_;
  std::vector<Seen> seen_;
  int64_t seen_in_ = -1;  // the step of the run
  int64_t looks_ = 0;     // pairs of calls
};

}  // namespace lockstep::internal::train
