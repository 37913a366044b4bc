// Open MPI's mpirun.
#include "lockstep/cluster/sources.h"

namespace lockstep::internal::inline cluster {

std::optional<ClusterSpec> open_mpi(const Environment& environment) {
  if (!environment.has("OMPI_COMM_WORLD_RANK") && !environment.has("OMPI_COMM_WORLD_SIZE")) return std::nullopt;
  ClusterSpec spec = rank_and_size(environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  spec.job_id = job_id_of(environment, {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
  set_local_worker(spec, environment, "OMPI_COMM_WORLD_LOCAL_RANK");
  set_chief_of_mpi(spec, environment, "OMPI_COMM_WORLD_LOCAL_SIZE");
  return spec;
}

}  // namespace lockstep::internal::cluster
