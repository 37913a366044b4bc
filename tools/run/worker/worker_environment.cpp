#include "tools/run/worker/worker_environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "lockstep/cluster/address.h"
#include "lockstep/cluster/sources/other_launchers.h"

namespace lockstep::tools {

namespace {

/// Variables that say which worker of which job a process is, set by launchers that the launcher itself may run under.
/// A name that ends in '*' stands for all that begin so.
constexpr std::array<std::string_view, 32> kOfOtherJobs = {
    "TF_CONFIG",
    "LOCKSTEP_PS",
    "LOCKSTEP_EVALUATOR",
    "LOCKSTEP_EPOCH",
    "LOCKSTEP_END_NOTICE",
    "TORCHELASTIC_*",
    "NODE_RANK",
    "PET_*",
    "OMPI_*",
    "PMI_*",
    "PMIX_*",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_*",
    "HOROVOD_*",
    "JSM_NAMESPACE_*",
    "PALS_*",
    "ALPS_*",
    "FLUX_TASK_*",
    "FLUX_JOB_SIZE",
    "FLUX_JOB_NNODES",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_STEP_*",
    "SLURM_STEPID",
    "SLURM_NTASKS*",
    "SLURM_NPROCS",
    "SLURM_TASKS_PER_NODE",
    "SLURM_TASK_PID",
    "SLURM_GTIDS",
    "JOB_COMPLETION_INDEX",
};

/// Variables of workers that are counted, which the tasks of a job with parameter servers are not.
constexpr std::array<std::string_view, 14> kOfCountedWorkers = {"LOCKSTEP_NUM_WORKERS",
                                                                "LOCKSTEP_WORKER_INDEX",
                                                                "LOCKSTEP_LOCAL_WORKER",
                                                                "LOCKSTEP_CHIEF_ADDRESS",
                                                                "RANK",
                                                                "WORLD_SIZE",
                                                                "LOCAL_RANK",
                                                                "LOCAL_WORLD_SIZE",
                                                                "GROUP_RANK",
                                                                "GROUP_WORLD_SIZE",
                                                                "ROLE_RANK",
                                                                "ROLE_WORLD_SIZE",
                                                                "MASTER_ADDR",
                                                                "MASTER_PORT"};

/// What a user says about the network to other hosts. It does not fit to workers that meet on this one.
constexpr std::array<std::string_view, 3> kOfSeveralHosts = {"LOCKSTEP_SECRET", "LOCKSTEP_SECRET_FILE",
                                                             "LOCKSTEP_INTERFACE"};

bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.back() != '*') return name == pattern;
  return name.substr(0, pattern.size() - 1) == pattern.substr(0, pattern.size() - 1);
}

using Variables = std::vector<std::pair<std::string, std::string>>;

Variables of_this_job(const WorkerIdentity& worker) {
  const std::string index = fmt::to_string(worker.share.first_worker + worker.local);
  const std::string workers = fmt::to_string(worker.share.num_workers);
  const std::string local = fmt::to_string(worker.local);
  Variables variables = {
      {"LOCKSTEP_NUM_WORKERS", workers},
      {"LOCKSTEP_WORKER_INDEX", index},
      {"LOCKSTEP_LOCAL_WORKER", local},
      {"LOCKSTEP_CHIEF_ADDRESS", internal::to_string(internal::Address{worker.chief_host, worker.port})},
      {"LOCKSTEP_JOB_ID", worker.job_id},
      {"LOCKSTEP_STOP_SOCKET", worker.stop_notices},
      {"LOCKSTEP_RESTART_COUNT", fmt::to_string(worker.restart_count)},
      {"RANK", index},
      {"WORLD_SIZE", workers},
      {"LOCAL_RANK", local},
      {"LOCAL_WORLD_SIZE", fmt::to_string(worker.share.workers)},
      {"GROUP_RANK", fmt::to_string(worker.share.host)},
      {"GROUP_WORLD_SIZE", fmt::to_string(worker.share.num_hosts)},
      {"ROLE_RANK", index},
      {"ROLE_WORLD_SIZE", workers},
      {"ROLE_NAME", "default"},
      {"MASTER_ADDR", worker.chief_host},
      {"MASTER_PORT", fmt::to_string(worker.port)},
      {"TORCHELASTIC_RESTART_COUNT", fmt::to_string(worker.restart_count)},
      {"TORCHELASTIC_MAX_RESTARTS", fmt::to_string(worker.max_restarts)},
      {"TORCHELASTIC_RUN_ID", worker.job_id},
  };
  if (!worker.secret.empty()) variables.emplace_back("LOCKSTEP_SECRET", worker.secret);
  return variables;
}

bool contains(std::span<const std::string_view> patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](std::string_view one) { return matches(one, name); });
}

/// `outer` without the variables of other jobs and of `removed`, and then `own`.
std::vector<std::string> with_own(const std::vector<std::string>& outer, const Variables& own, bool has_new_secret,
                                  std::span<const std::string_view> removed) {
  std::vector<std::string> result;
  for (const std::string& variable : outer) {
    const std::string_view name = std::string_view(variable).substr(0, variable.find('='));
    const bool is_own = std::any_of(own.begin(), own.end(), [&](const auto& entry) { return entry.first == name; });
    const bool is_of_other = contains(kOfOtherJobs, name) || internal::is_of_other_launcher(name) ||
                             contains(removed, name) || (has_new_secret && contains(kOfSeveralHosts, name));
    if (!is_own && !is_of_other) result.push_back(variable);
  }
  for (const auto& [name, value] : own) result.push_back(fmt::format("{}={}", name, value));
  return result;
}

}  // namespace

std::vector<std::string> worker_environment(const std::vector<std::string>& outer, const WorkerIdentity& worker) {
  return with_own(outer, of_this_job(worker), !worker.secret.empty(), {});
}

std::vector<std::string> task_environment(const std::vector<std::string>& outer, const TaskIdentity& task) {
  Variables own = {
      {"TF_CONFIG", task.tf_config},
      {"LOCKSTEP_JOB_ID", task.job_id},
      {"LOCKSTEP_STOP_SOCKET", task.stop_notices},
      {"LOCKSTEP_RESTART_COUNT", fmt::to_string(task.restart_count)},
      {"LOCKSTEP_EPOCH", fmt::to_string(task.epoch)},
  };
  if (!task.secret.empty()) own.emplace_back("LOCKSTEP_SECRET", task.secret);
  if (!task.end_notice.empty()) own.emplace_back("LOCKSTEP_END_NOTICE", task.end_notice);
  return with_own(outer, own, !task.secret.empty(), kOfCountedWorkers);
}

void change_variable(std::vector<std::string>& environment, const std::string& name, const std::string& value) {
  for (std::string& variable : environment) {
    if (variable.starts_with(name + "=")) variable = name + "=" + value;
  }
}

}  // namespace lockstep::tools
