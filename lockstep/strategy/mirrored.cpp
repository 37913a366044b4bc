#include "lockstep/strategy/mirrored.h"

#include <fmt/format.h>

#include "lockstep/core/log.h"
#include "lockstep/replica/lanes.h"
#include "lockstep/strategy/setup.h"

namespace lockstep {

namespace {

internal::StrategySetup setup_of(const MirroredOptions& options) {
  internal::LaneRequest request{options.devices, options.replicas, {options.threads_per_replica, options.denormals}};
  internal::StrategySetup setup{.name = "MirroredStrategy",
                                .lanes = plan_lanes(request, internal::cores_of_this_process(), 0)};
  setup.copies =
      options.copies == Copies::kPerReplica ? internal::CopyPolicy::kPerReplica : internal::CopyPolicy::kPerMemory;
  setup.seed = options.seed;
  setup.verify_every = options.verify_every;
  if (setup.lanes.replicas_from_machine) {
    internal::log(
        LogLevel::kInfo,
        fmt::format("MirroredStrategy has {} replicas because this machine has {} cores; results depend on the "
                    "number of replicas: set .replicas to keep them elsewhere",
                    setup.lanes.num_replicas, setup.lanes.available_cores));
  }
  return setup;
}

}  // namespace

MirroredStrategy::MirroredStrategy(MirroredOptions options) : Strategy(setup_of(options)) {}

}  // namespace lockstep
