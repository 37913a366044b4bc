// LibTorch's learning rate schedulers over an optimizer of this library.
#pragma once

#include <ATen/core/TensorBody.h>
#include <torch/optim/optimizer.h>

#include "lockstep/optim/optimizer.h"

namespace lockstep {

/// A torch::optim::Optimizer& for LibTorch's schedulers: its parameter groups are those of an optimizer of this
/// library, without parameters. The learning rate that a scheduler sets is the group's from the next step on, as by
/// Optimizer::set_learning_rate, and is read as by learning_rate(). So all workers make the same calls of
/// scheduler.step(), between runs: once for each epoch or once for each step, as the scheduler counts. A scheduler that
/// looks at a loss or a metric is given one that all workers have, as reduce() gives it. A scheduler counts its own
/// steps, which are no part of a checkpoint; schedules (schedule.h) follow from the step.
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
