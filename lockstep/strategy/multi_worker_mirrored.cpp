#include "lockstep/strategy/multi_worker_mirrored.h"

#include <fmt/format.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/comm/join.h"
#include "lockstep/core/error.h"
#include "lockstep/strategy/setup.h"

namespace lockstep {

namespace {

/// Throws a UsageError, on every worker, where one was given other options than worker 0.
void require_equal_options(World& world, const MultiWorkerMirroredOptions& options) {
  const std::string mine =
      fmt::format("replicas {}, seed {}, threads_per_replica {}, verify_every {}, denormals {}, factored_gradients {}",
                  options.replicas, options.seed, options.threads_per_replica, options.verify_every,
                  options.denormals == Denormals::kFlush ? "flushed" : "kept",
                  options.factored_gradients == FactoredGradients::kAuto ? "auto" : "off");
  const std::vector<std::string> all = world.agree(mine);
  for (std::size_t w = 1; w < all.size(); ++w) {
    if (all[w] == all.front()) continue;
    throw UsageError(
        "LS-WORKER-ORDER",
        fmt::format("MultiWorkerMirroredStrategy was given other options on worker {} ({}) than on worker 0 "
                    "({})",
                    w, all[w], all.front()),
        "give all workers the same options, but for .cluster and .devices");
  }
}

StrategySetup setup_of(MultiWorkerMirroredOptions options) {
  // What can be refused without the others comes before the wait for them.
  auto topology = std::make_shared<HostTopology>(std::move(options.devices), options.replicas);
  const ClusterSpec cluster = options.cluster ? *options.cluster : resolve_cluster();
  const std::shared_ptr<World> world = join(cluster, {.engine = options.engine, .timeouts = options.timeouts});
  require_equal_options(*world, options);
  return {.name = "MultiWorkerMirroredStrategy",
          .topology = std::move(topology),
          .placement = placement_of(options.copies),
          .world = world,
          .seed = options.seed,
          .threads_per_replica = options.threads_per_replica,
          .verify_every = options.verify_every,
          .denormals = options.denormals,
          .factored_gradients = options.factored_gradients};
}

}  // namespace

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(MultiWorkerMirroredOptions options)
    : Strategy(setup_of(std::move(options))) {}

MultiWorkerMirroredStrategy::~MultiWorkerMirroredStrategy() = default;

}  // namespace lockstep
