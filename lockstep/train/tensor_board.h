// The callback that writes a fit for TensorBoard.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "lockstep/train/callback.h"

namespace lockstep::callbacks {

struct TensorBoardOptions {
  std::filesystem::path directory = {};
  /// Scalars of each so many-th step. 0: of each of the first thousand steps, then of each second up to two thousand,
  /// each fourth up to four thousand, and so on: TensorBoard shows a thousand points of a curve.
  int64_t every_steps = 0;
  /// Histograms of the model's variables at the end of each so many-th epoch; 0: none.
  int64_t histograms_every = 1;
  /// Images at the end of each epoch, by tag: tensors [count, channels, height, width] of 1, 3 or 4 channels, uint8, or
  /// floating-point from 0 to 1. It is called on every worker, and the chief's are shown.
  std::function<std::map<std::string, at::Tensor>(Trainer& trainer)> images = {};
  /// Histograms of the gradients of each so many-th epoch's first step ("gradients/<variable>"), as
  /// Trainer::gradients() has them; 0: none.
  int64_t gradients_every = 0;
};

/// Writes the runs `<directory>/train` and `<directory>/validation`, for `tensorboard --logdir <directory>`, with equal
/// tags in both, so that each quantity is one chart. The step of a point is how many steps were done.
///
/// Of training: the loss and metrics of steps, "learning_rate" ("learning_rate/<group>" where there are several
/// groups), "gradient_norm" and "samples_per_second"; of each epoch its logs as "epoch/<name>", the shares of its time
/// that went into waiting for input and into validation ("time/input", "time/validation"), the shares of its steps'
/// time that its lanes spent on computing, updates, communication and waiting ("time/compute" and so on), histograms
/// ("weights/<variable>", "gradients/<variable>"), and the strategy's findings, as texts. Of validation: the loss and
/// metrics, by plain names.
///
/// The chief alone writes. What was logged is in the files after a second or so while steps are made, after each epoch,
/// and before a checkpoint is saved; a process that is killed leaves at most a part of a record, which readers pass
/// over. A fit that is resumed continues the curves, without points of steps that are made again. A UsageError
/// (LS-OPTION) without a directory; a DataError (LS-FILE) where files cannot be written.
std::shared_ptr<Callback> tensor_board(TensorBoardOptions options);

}  // namespace lockstep::callbacks
