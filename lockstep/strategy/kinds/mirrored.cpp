#include "lockstep/strategy/kinds/mirrored.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/strategy/resolve_tuning.h"
#include "lockstep/strategy/setup.h"

namespace lockstep {

std::shared_ptr<const Placement> placement_of(Copies copies) {
  switch (copies) {
    case Copies::kPerMemory: return std::make_shared<OneCopyPlacement>();
    case Copies::kPerReplica: return std::make_shared<OwnCopyPlacement>();
  }
  throw UsageError("LS-OPTION", fmt::format(".copies is {}, which has no name", static_cast<int>(copies)),
                   "give one of its enumerators");
}

namespace {

StrategySetup setup_of(MirroredOptions options) {
  return {.name = "MirroredStrategy",
          .topology = std::make_shared<HostTopology>(std::move(options.devices), options.replicas),
          .placement = placement_of(options.copies),
          .seed = options.seed,
          .threads_per_replica = options.threads_per_replica,
          .verify_every = options.verify_every,
          .denormals = options.denormals,
          .factored_gradients = options.factored_gradients};
}

}  // namespace

MirroredStrategy::MirroredStrategy(MirroredOptions options)
    : Strategy(setup_of(internal::resolve_tuning("MirroredStrategy", std::move(options)))) {}

MirroredStrategy::~MirroredStrategy() = default;

}  // namespace lockstep
