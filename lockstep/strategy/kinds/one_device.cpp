#include "lockstep/strategy/kinds/one_device.h"

#include <memory>
#include <utility>
#include <vector>

#include "lockstep/strategy/resolve_tuning.h"
#include "lockstep/strategy/setup.h"

namespace lockstep {

namespace {

/// Not pinned: no other lane would take the same core.
std::shared_ptr<const Topology> topology_of(const std::string& device) {
  return std::make_shared<HostTopology>(std::vector<std::string>{device}, 1, /*pinned=*/false);
}

StrategySetup setup_of(const OneDeviceOptions& options) {
  return {.name = "OneDeviceStrategy",
          .topology = topology_of(options.device),
          .seed = options.seed,
          .threads_per_replica = options.threads_per_replica,
          .verify_every = options.verify_every,
          .denormals = options.denormals,
          .factored_gradients = options.factored_gradients};
}

}  // namespace

OneDeviceStrategy::OneDeviceStrategy(const OneDeviceOptions& options)
    : Strategy(setup_of(internal::resolve_tuning("OneDeviceStrategy", options))) {}

OneDeviceStrategy::~OneDeviceStrategy() = default;

}  // namespace lockstep
