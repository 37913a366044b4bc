// LibTorch's learning rate schedulers over an optimizer of this library.
#pragma once

#include <ATen/core/TensorBody.h>
#include <torch/optim/optimizer.h>

#include "lockstep/optim/optimizer.h"

namespace lockstep {

/// A torch::optim::Optimizer& for LibTorch's schedulers: its parameter groups are those of an optimizer of this
/// library, without parameters. The learning rate that a scheduler sets is the group's from the next step on, as by
/// Optimizer::set_learning_rate, and is read as by learning_rate(): outside of steps, and by all workers. A scheduler
/// counts its own steps, which are no part of a checkpoint; schedules (schedule.h) follow from the step.
///
///     lockstep::LearningRateBridge bridge(optimizer);
///     torch::optim::StepLR scheduler(bridge, /*step_size=*/30, /*gamma=*/0.1);
class LearningRateBridge final : public torch::optim::Optimizer {
 public:
  /// The bridge keeps the optimizer alive.
  explicit LearningRateBridge(const lockstep::Optimizer& optimizer);
  /// Throws a UsageError: step the library's optimizer.
  at::Tensor step(LossClosure closure) override;
};

}  // namespace lockstep
