// The gradients of one step of a fit, for callbacks that want to look at them.
#pragma once

#include <ATen/core/TensorBody.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline train {

class StepGradients {
 public:
  /// Those of the variables that are trained.
  StepGradients(const Strategy& strategy, const std::vector<Variable>& variables);

  /// Takes a copy of this replica's gradients, on its thread, between its backward pass and the optimizer's step.
  void keep(const ReplicaContext& ctx);
  /// The sums over all replicas, by name. A call of all workers, where there are variables.
  std::vector<std::pair<std::string, at::Tensor>> sums() const;

 private:
  const Strategy& strategy_;
  std::vector<Variable> variables_;
  std::optional<PerReplica<std::vector<at::Tensor>>> kept_;
};

}  // namespace lockstep::internal::train
