// How long a Trainer trains, what it validates with, and what it calls meanwhile.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/data/distributed_dataset.h"

namespace lockstep {

class Callback;

struct FitOptions {
  /// The number behind the last epoch's, as in Keras: with `initial_epoch` 3 and `epochs` 5 the epochs 3 and 4 are
  /// trained. Without `epochs` and `steps` one epoch is; with `steps` alone, as many as the steps take.
  std::optional<int64_t> epochs = std::nullopt;
  /// How many steps the fit makes at most, in all and not for each epoch. A stream without end needs it. The epoch that
  /// is under way then ends as after Trainer::stop().
  std::optional<int64_t> steps = std::nullopt;
  std::optional<DistributedDataset> validation = std::nullopt;  // evaluated in the fit; its logs begin with "val_"
  int64_t validate_every = 1;  // validates after each so many-th epoch, counted from epoch 0
  std::vector<std::shared_ptr<Callback>> callbacks = {};
  int64_t initial_epoch = 0;
  /// Validates after each so many-th step of the fit, in place of epochs' ends: for streams, and long epochs. An
  /// epoch's logs then have the numbers of its last validation.
  int64_t validate_every_steps = 0;
  /// Ends the fit, as Trainer::stop() does, after the step in which so much time is over by the chief's clock: a limit
  /// of this process, not of those that it resumes. 0: none.
  std::chrono::duration<double> time = {};
  int64_t log_every = 1;  // on_step_end has logs at each so many-th step: the workers add them up then
  /// Trains one step, validates with one batch, and calls no callback that writes files.
  bool dry_run = false;
  /// Evaluates one batch of `validation` before the first step, so that an error in it does not come after an epoch.
  /// It leaves no trace: random streams and logs are as without it.
  bool check_validation = true;
};

}  // namespace lockstep
