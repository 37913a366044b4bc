// PMI's variables, as MPICH, Intel MPI and MVAPICH set them, and those of PMIx.
#include <algorithm>
#include <array>

#include "lockstep/cluster/sources.h"
#include "lockstep/cluster/sources/other_launchers.h"

namespace lockstep::internal::inline cluster {

namespace {

struct Names {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};
constexpr std::array<Names, 2> kFamilies = {{
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"},
}};

}  // namespace

std::optional<ClusterSpec> pmi(const Environment& environment) {
  for (const Names& names : kFamilies) {
    if (!environment.has(names.rank) && !environment.has(names.size)) continue;
    ClusterSpec spec = rank_and_size(environment, names.rank, names.size);
    spec.job_id = job_id_of(environment, {"PMI_JOBID"});
    set_local_worker(spec, environment, names.local_rank);
    set_chief_of_mpi(spec, environment, names.local_size);
    return spec;
  }
  return std::nullopt;
}

std::optional<ClusterSpec> pmix(const Environment& environment) {
  const std::initializer_list<const char*> better = {
      "LOCKSTEP_WORKER_INDEX", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE",
      "SLURM_STEP_NUM_TASKS"};
  if (std::any_of(better.begin(), better.end(), [&](const char* name) { return environment.has(name); })) {
    return std::nullopt;
  }
  if (!environment.has("PMIX_RANK") || !name_of_other_launcher(environment).empty()) return std::nullopt;
  // What a user says of a process that is meant to be alone.
  if (environment.get("LOCKSTEP_NUM_WORKERS") == "1") return std::nullopt;
  require(environment, shown(environment, "PMIX_RANK"), {"LOCKSTEP_NUM_WORKERS"});
  ClusterSpec spec = rank_and_size(environment, "PMIX_RANK", "LOCKSTEP_NUM_WORKERS");
  spec.job_id = job_id_of(environment, {"PMIX_NAMESPACE"});
  set_chief_from_master(spec, environment);
  return spec;
}

}  // namespace lockstep::internal::cluster
