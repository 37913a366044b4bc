// The steps of a Trainer as scheduled steps of parameter servers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/train/step_runner.h"

namespace lockstep {
class ParameterServerStrategy;
}

namespace lockstep::internal::inline server {

/// Where workers go in step, a batch is a round: each worker has a part of it, and one batch is under way at a time, so
/// that what callbacks change holds for the next one. Otherwise a batch is one worker's step, of which two for each
/// worker are under way.
///
/// Where tasks are processes, the chief reads the data, and sends each worker its part. All tasks have the same
/// Trainer, of which each function is a step with a name.
class TrainedSteps {
 public:
  static std::unique_ptr<StepRunner> make(ParameterServerStrategy& strategy, const TrainerSetup& setup,
                                          const MetricList& metrics);

 private:
  class Runner;
  /// Makes a step of each of the functions of the Trainer that has these options, where the tasks of the run are
  /// processes; gives the first one's kind. The steps hold `works` as long as somebody else does.
  static uint32_t name_steps(ParameterServerStrategy& strategy, const std::shared_ptr<std::vector<PartWork>>& works,
                             std::string options);
};

}  // namespace lockstep::internal::server
