// LOCKSTEP_*: what a user or `lockstep run` sets.
#include "lockstep/cluster/sources.h"
#include "lockstep/cluster/sources/other_launchers.h"

namespace lockstep::internal::inline cluster {

std::optional<ClusterSpec> lockstep_variables(const Environment& environment) {
  const bool has_count = environment.has("LOCKSTEP_NUM_WORKERS");
  const bool has_index = environment.has("LOCKSTEP_WORKER_INDEX");
  if (!has_count && !has_index) return std::nullopt;
  if (!has_index) {
    if (environment.integer("LOCKSTEP_NUM_WORKERS", 1, kMostTasks) == 1) {
      ClusterSpec spec = workers(1, 0);
      spec.origins.num_workers = shown(environment, "LOCKSTEP_NUM_WORKERS");
      return spec;
    }
    if (environment.has("JOB_COMPLETION_INDEX") || environment.has("PMIX_RANK")) return std::nullopt;
    if (!name_of_other_launcher(environment).empty()) return std::nullopt;
  }
  // The chief's address, the local worker and so on hold whichever source wins: resolve_cluster() reads them.
  return rank_and_size(environment, "LOCKSTEP_WORKER_INDEX", "LOCKSTEP_NUM_WORKERS");
}

}  // namespace lockstep::internal::cluster
