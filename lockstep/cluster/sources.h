// The library's own sources of the cluster's description, each in a file named after it, and what they share.
//
// Each is a function of the environment. It gives nothing where it does not apply, a valid ClusterSpec where it does,
// and throws a ClusterError where it applies and its variables are malformed or incomplete. When it applies stands at
// each declaration. A variable that other programs use too, such as RANK, makes no source apply by itself: a program
// that is alone must not fail because of it. A launcher's own variable, such as OMPI_COMM_WORLD_RANK, does. A count of
// several workers is an error where nothing says which of them this process is, and so is a rank without a count.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cluster/address.h"
#include "lockstep/cluster/cluster_spec.h"
#include "lockstep/cluster/sources/environment.h"

namespace lockstep::internal::inline cluster {

/// LOCKSTEP_NUM_WORKERS and LOCKSTEP_WORKER_INDEX. Applies where one of them is set; both must be, but for one worker.
/// Where the index is missing and JOB_COMPLETION_INDEX, PMIX_RANK or a rank of other_launchers.h is set, it leaves the
/// count to that source.
std::optional<ClusterSpec> lockstep_variables(const Environment& environment);

/// TF_CONFIG. Applies where it has a cluster, or a task that is not the first one of its job, which without a cluster
/// is an error, or that is the evaluator.
std::optional<ClusterSpec> tf_config(const Environment& environment);

/// RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Applies where the first three are set, LOCKSTEP_CHIEF_ADDRESS counting
/// as MASTER_ADDR, and where TORCHELASTIC_RUN_ID is; then all must be.
std::optional<ClusterSpec> torchrun(const Environment& environment);

/// PET_NNODES and PET_NODE_RANK, which configure torchrun, where nobody ran torchrun: one worker for each node. Applies
/// where one of them is set, or PET_NPROC_PER_NODE is a number above 1, which is an error, and torchrun's
/// TORCHELASTIC_RUN_ID and LOCAL_RANK are not; both must be, but for one node.
std::optional<ClusterSpec> pet(const Environment& environment);

/// OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE. Applies where one of them is set; both must be.
std::optional<ClusterSpec> open_mpi(const Environment& environment);

/// PMI_RANK and PMI_SIZE (MPICH, Intel MPI), otherwise MV2_COMM_WORLD_RANK and MV2_COMM_WORLD_SIZE (MVAPICH). Applies
/// where one of them is set; both must be.
std::optional<ClusterSpec> pmi(const Environment& environment);

/// SLURM_PROCID and SLURM_STEP_NUM_TASKS. Applies inside a step that srun made: where SLURM_STEP_NUM_TASKS is set and
/// the step is not the shell of sbatch or salloc; then all must be.
std::optional<ClusterSpec> slurm(const Environment& environment);

/// PMIX_RANK, with the count from LOCKSTEP_NUM_WORKERS. Applies where PMIX_RANK is set, the variables of Open MPI, PMI,
/// a step of Slurm and the launchers of other_launchers.h are not, and LOCKSTEP_WORKER_INDEX is not; then the count
/// must be set. Gives nothing where it is 1.
std::optional<ClusterSpec> pmix(const Environment& environment);

/// JOB_COMPLETION_INDEX of a Kubernetes job, with the count from LOCKSTEP_NUM_WORKERS, otherwise WORLD_SIZE where
/// MASTER_ADDR is set as well. Applies where an index and a count are there, and LOCKSTEP_WORKER_INDEX and RANK are
/// not. An index alone is also what jobs of independent tasks have.
std::optional<ClusterSpec> kubernetes(const Environment& environment);

/// For a process that no source applies to: throws LS-CLUSTER-INCOMPLETE where the variables that are set are no
/// accident, such as RANK and MASTER_ADDR without WORLD_SIZE, a WORLD_SIZE above 1, or a rank whose count nobody tells.
/// Otherwise a sentence for each sign of other workers that may be one, such as a Slurm allocation of several tasks.
std::vector<std::string> signs_of_others(const Environment& environment);

/// For a description of one worker, which nobody has asked for by LOCKSTEP_NUM_WORKERS=1: a sentence where a scheduler
/// has given several hosts to the job.
std::vector<std::string> signs_of_other_hosts(const ClusterSpec& one, const Environment& environment);

/// Throws LS-CLUSTER-INCOMPLETE with these variables, "PALS_RANKID=1", and those of Lockstep that help.
[[noreturn]] void throw_one_of_several(const std::vector<std::string>& seen);

/// Whether the text is a whole number above 1.
bool is_above_one(const std::optional<std::string>& text);

/// Throws LS-CLUSTER-INCOMPLETE where one of `needed` is not set, naming the first one; `present` is what made the
/// source apply, such as "TORCHELASTIC_RUN_ID=a1".
void require(const Environment& environment, const std::string& present, std::initializer_list<const char*> needed);

/// Rank and size by these two variables, of which one is set: `count` workers, of which this one is `index`. Fills both
/// origins.
ClusterSpec rank_and_size(const Environment& environment, const char* rank, const char* size);

/// The workers of a source that knows of no address: `count` of them, of which this process is `index`.
ClusterSpec workers(int64_t count, int64_t index);

/// Sets the chief's address: the first one of "chief" or "worker".
void set_chief_address(ClusterSpec& spec, const std::string& address);

/// Sets it to MASTER_ADDR and MASTER_PORT where the former is set; without MASTER_PORT to port_of_job().
void set_chief_from_master(ClusterSpec& spec, const Environment& environment);

/// The same for launchers of MPI programs: where MASTER_ADDR is not set, and `local_size` says that all workers run on
/// this host, it is the loopback address with port_of_job(). Otherwise it stays unknown.
void set_chief_of_mpi(ClusterSpec& spec, const Environment& environment, const char* local_size);

/// Sets local_worker and its origin where the variable is set.
void set_local_worker(ClusterSpec& spec, const Environment& environment, const char* variable);

/// A port for a job that names none: 20000 + (FNV-1a hash of the job's id, 32 bits) mod 9000. The range is below those
/// from which Linux and Kubernetes take ports by themselves.
uint16_t port_of_job(const std::string& job_id);

/// The job's id: LOCKSTEP_JOB_ID, otherwise the first of the variables that is set; empty where none is.
std::string job_id_of(const Environment& environment, std::initializer_list<const char*> variables);

}  // namespace lockstep::internal::cluster
