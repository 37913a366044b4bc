// A Kubernetes job with `completionMode: Indexed`. Kubernetes tells the index, and the job's file the rest.
#include "lockstep/cluster/sources.h"

namespace lockstep::internal::inline cluster {

std::optional<ClusterSpec> kubernetes(const Environment& environment) {
  const char* index = "JOB_COMPLETION_INDEX";
  if (!environment.has(index) || environment.has("LOCKSTEP_WORKER_INDEX") || environment.has("RANK"))
    return std::nullopt;
  const char* count = "LOCKSTEP_NUM_WORKERS";
  if (!environment.has(count)) {
    if (!environment.has("WORLD_SIZE") || !environment.has("MASTER_ADDR")) return std::nullopt;
    count = "WORLD_SIZE";
  }
  ClusterSpec spec = rank_and_size(environment, index, count);
  spec.job_id = job_id_of(environment, {});
  set_chief_from_master(spec, environment);
  return spec;
}

}  // namespace lockstep::internal::cluster
