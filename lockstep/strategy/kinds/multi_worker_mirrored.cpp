#include "lockstep/strategy/kinds/multi_worker_mirrored.h"

#include <fmt/format.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "lockstep/cluster/resolve_cluster.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/comm/join/join.h"
#include "lockstep/comm/rounds.h"
#include "lockstep/core/error.h"
#include "lockstep/strategy/resolve_tuning.h"
#include "lockstep/strategy/setup.h"

namespace lockstep {

namespace {

/// Throws a UsageError, on every worker, where one was given other options than worker 0. The strategy's base compares
/// those that it knows.
void require_equal_options(const std::shared_ptr<World>& world, const MultiWorkerMirroredOptions& options) {
  internal::Rounds rounds(world);
  const auto all =
      internal::agree_on_call(rounds, {.call = "MultiWorkerMirroredStrategy"}, [&](internal::Proposal& mine) {
        mine.data = fmt::format("replicas {}, verify_every {}", options.replicas, options.verify_every);
      });
  for (std::size_t w = 1; w < all.size(); ++w) {
    if (all[w].data == all.front().data) continue;
    throw UsageError(
        "LS-WORKER-ORDER",
        fmt::format("MultiWorkerMirroredStrategy was given other options on worker {} ({}) than on worker 0 "
                    "({})",
                    w, all[w].data, all.front().data),
        "give all workers the same options");
  }
}

StrategySetup setup_of(MultiWorkerMirroredOptions options) {
  // The number of replicas and the engine are checked before the wait for the others.
  auto topology = std::make_shared<HostTopology>(std::move(options.devices), options.replicas);
  const ClusterSpec cluster = options.cluster ? *options.cluster : resolve_cluster();
  const std::shared_ptr<World> world = join(cluster, {.engine = options.engine, .timeouts = options.timeouts});
  require_equal_options(world, options);
  return {.name = "MultiWorkerMirroredStrategy",
          .topology = std::move(topology),
          .placement = placement_of(options.copies),
          .world = world,
          .seed = options.seed,
          .threads_per_replica = options.threads_per_replica,
          .verify_every = options.verify_every,
          .denormals = options.denormals,
          .factored_gradients = options.factored_gradients,
          .update_form = options.update_form,
          .wire = options.wire,
          .slots = options.slots};
}

}  // namespace

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(MultiWorkerMirroredOptions options)
    : Strategy(setup_of(internal::resolve_tuning("MultiWorkerMirroredStrategy", std::move(options)))) {}

MultiWorkerMirroredStrategy::~MultiWorkerMirroredStrategy() = default;

}  // namespace lockstep
