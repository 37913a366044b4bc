// Any environment: the input has a line NAME=value for each variable. A name of two characters stands for one of the
// variables that the library reads, so that the fuzzer need not find their names.
#include <algorithm>
#include <array>
#include <string_view>

#include "lockstep/cluster/resolve_cluster.h"
#include "tests/fuzz/spec_promises.h"

namespace {

constexpr std::array<const char*, 60> kNames = {"LOCKSTEP_NUM_WORKERS",
                                                "LOCKSTEP_WORKER_INDEX",
                                                "LOCKSTEP_CHIEF_ADDRESS",
                                                "LOCKSTEP_LOCAL_WORKER",
                                                "LOCKSTEP_JOB_ID",
                                                "LOCKSTEP_SECRET",
                                                "LOCKSTEP_INTERFACE",
                                                "TF_CONFIG",
                                                "RANK",
                                                "WORLD_SIZE",
                                                "MASTER_ADDR",
                                                "MASTER_PORT",
                                                "LOCAL_RANK",
                                                "GROUP_RANK",
                                                "GROUP_WORLD_SIZE",
                                                "TORCHELASTIC_RUN_ID",
                                                "TORCHELASTIC_USE_AGENT_STORE",
                                                "PET_NNODES",
                                                "PET_NODE_RANK",
                                                "PET_NPROC_PER_NODE",
                                                "PET_MASTER_ADDR",
                                                "PET_MASTER_PORT",
                                                "PET_RDZV_ID",
                                                "OMPI_COMM_WORLD_RANK",
                                                "OMPI_COMM_WORLD_SIZE",
                                                "OMPI_COMM_WORLD_LOCAL_RANK",
                                                "OMPI_COMM_WORLD_LOCAL_SIZE",
                                                "OMPI_MCA_ess_base_jobid",
                                                "PMIX_NAMESPACE",
                                                "PMIX_RANK",
                                                "PMI_RANK",
                                                "PMI_SIZE",
                                                "PMI_JOBID",
                                                "MPI_LOCALRANKID",
                                                "MPI_LOCALNRANKS",
                                                "MV2_COMM_WORLD_RANK",
                                                "MV2_COMM_WORLD_SIZE",
                                                "MV2_COMM_WORLD_LOCAL_RANK",
                                                "MV2_COMM_WORLD_LOCAL_SIZE",
                                                "SLURM_PROCID",
                                                "SLURM_LOCALID",
                                                "SLURM_NODEID",
                                                "SLURM_JOB_ID",
                                                "SLURM_JOBID",
                                                "SLURM_STEP_ID",
                                                "SLURM_STEP_NUM_TASKS",
                                                "SLURM_STEP_NODELIST",
                                                "SLURM_STEP_TASKS_PER_NODE",
                                                "SLURM_DISTRIBUTION",
                                                "SLURM_NTASKS",
                                                "SLURM_NPROCS",
                                                "SLURM_NNODES",
                                                "SLURM_JOB_NUM_NODES",
                                                "JOB_COMPLETION_INDEX",
                                                "KUBERNETES_SERVICE_HOST",
                                                "NODE_RANK",
                                                "GROUP_NAME",
                                                "HOSTNAME",
                                                "LOCKSTEP_PS",
                                                "LOCKSTEP_EVALUATOR"};

lockstep::Environment environment_of(std::string_view input) {
  lockstep::Environment::Variables variables;
  while (!input.empty()) {
    const std::string_view line = input.substr(0, input.find('\n'));
    input.remove_prefix(std::min(input.size(), line.size() + 1));
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    std::string name(line.substr(0, equals));
    if (name.size() == 2)
      name = kNames[(static_cast<unsigned char>(name[0]) * 10u + static_cast<unsigned char>(name[1])) % kNames.size()];
    variables[name] = line.substr(equals + 1);
  }
  variables.erase("LOCKSTEP_SECRET_FILE");  // the only one that leads out of the environment
  return lockstep::Environment(std::move(variables));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace lockstep;
  const Environment environment = environment_of({reinterpret_cast<const char*>(data), size});
  fuzz::expect_value_or_error([&] {
    const ClusterSpec spec = resolve_cluster({}, environment);
    fuzz::check_spec(spec);
    const bool is_worker = spec.job == "worker" || spec.job == "chief";
    fuzz::check(!is_worker || spec.num_workers() == 1 || !spec.chief_address().empty(), "several workers have a chief");
    for (const std::string& sentence : spec.disagreements) {
      for (const char c : sentence) fuzz::check(c >= 0x20 && c <= 0x7e, "a disagreement is one printable line");
    }
  });
  return 0;
}
