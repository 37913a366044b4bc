#include "lockstep/strategy/one_device.h"

#include "lockstep/replica/lanes.h"
#include "lockstep/strategy/setup.h"

namespace lockstep {

namespace {

internal::StrategySetup setup_of(const OneDeviceOptions& options) {
  internal::LaneRequest request{{options.device}, 1, {options.threads_per_replica, options.denormals}};
  internal::StrategySetup setup{.name = "OneDeviceStrategy",
                                .lanes = plan_lanes(request, internal::cores_of_this_process(), 0)};
  setup.lanes.cores.clear();  // nobody else to keep apart from
  setup.seed = options.seed;
  setup.verify_every = options.verify_every;
  return setup;
}

}  // namespace

OneDeviceStrategy::OneDeviceStrategy(OneDeviceOptions options) : Strategy(setup_of(options)) {}

}  // namespace lockstep
