// The steps of a Trainer as scheduled steps of parameter servers.
#pragma once

#include <memory>

#include "lockstep/train/step_runner.h"

namespace lockstep {
class ParameterServerStrategy;
}

namespace lockstep::internal::inline server {

/// Where workers go in step, a batch is a round: each worker has a part of it, and one batch is under way at a time, so
/// that what callbacks change holds for the next one. Otherwise a batch is one worker's step, of which two for each
/// worker are under way.
class TrainedSteps {
 public:
  static std::unique_ptr<StepRunner> make(ParameterServerStrategy& strategy, const TrainerSetup& setup);

 private:
  class Runner;
};

}  // namespace lockstep::internal::server
