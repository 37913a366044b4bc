// What the environment of a process that trains alone says of other workers.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/cluster/sources.h"
#include "lockstep/cluster/sources/other_launchers.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline cluster {

bool is_above_one(const std::optional<std::string>& text) {
  if (!text || !std::all_of(text->begin(), text->end(), [](char c) { return c >= '0' && c <= '9'; })) return false;
  const std::size_t first = text->find_first_not_of('0');
  return first != std::string::npos && text->substr(first) != "1";
}

namespace {

/// A count of several workers, where what would say which of them this process is is missing.
void require_no_count_alone(const Environment& environment) {
  for (const char* count : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) {
    if (!is_above_one(environment.get(count))) continue;
    // An indexed job of Kubernetes has the index, and lacks only the chief.
    const bool has_index = environment.has("RANK") || environment.has("JOB_COMPLETION_INDEX");
    const char* missing = !has_index ? "RANK" : environment.has("WORLD_SIZE") ? "MASTER_ADDR" : "WORLD_SIZE";
    throw ClusterError(
        "LS-CLUSTER-INCOMPLETE",
        fmt::format("{} is set, and {} is not: this worker would train alone", shown(environment, count), missing),
        fmt::format("start the program by its launcher, which sets RANK, WORLD_SIZE and MASTER_ADDR, or set "
                    "LOCKSTEP_NUM_WORKERS and LOCKSTEP_WORKER_INDEX; or unset {}, where it is meant to be alone",
                    count));
  }
}

}  // namespace

std::vector<std::string> signs_of_others(const Environment& environment) {
  const std::optional<std::string> size = environment.get("WORLD_SIZE");
  const bool several = size && *size != "1";
  const bool described =
      environment.has("MASTER_ADDR") ? environment.has("RANK") || several : environment.has("RANK") && several;
  if (described) {
    const char* present = environment.has("MASTER_ADDR") ? "MASTER_ADDR" : "WORLD_SIZE";
    require(environment, shown(environment, present), {"RANK", "WORLD_SIZE", "MASTER_ADDR"});
  }
  if (environment.has("LOCKSTEP_CHIEF_ADDRESS")) {
    require(environment, shown(environment, "LOCKSTEP_CHIEF_ADDRESS"),
            {"LOCKSTEP_NUM_WORKERS", "LOCKSTEP_WORKER_INDEX"});
  }
  require_no_count_alone(environment);
  if (const auto seen = ranks_that_nobody_reads(environment); !seen.empty()) throw_one_of_several(seen);
  std::vector<std::string> signs;
  for (const char* tasks : {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"}) {
    const std::optional<std::string> count = environment.get(tasks);
    if (!count || *count == "1") continue;
    signs.push_back(
        fmt::format("{} is of a Slurm allocation for several tasks, and srun did not start this program: it is alone",
                    shown(environment, tasks)));
    break;
  }
  if (environment.has("JOB_COMPLETION_INDEX")) {
    signs.push_back(
        fmt::format("{} is of a Kubernetes job, and LOCKSTEP_NUM_WORKERS does not say of how many workers: it is alone",
                    shown(environment, "JOB_COMPLETION_INDEX")));
  }
  return signs;
}

std::vector<std::string> signs_of_other_hosts(const ClusterSpec& one, const Environment& environment) {
  // Slurm's, Torque's, COBALT's and PET's numbers of hosts, and LSF's "host slots host slots".
  std::string found;
  for (const char* hosts : {"SLURM_JOB_NUM_NODES", "SLURM_NNODES", "PBS_NUM_NODES", "COBALT_PARTSIZE", "NNODES"}) {
    if (found.empty() && is_above_one(environment.get(hosts))) found = shown(environment, hosts);
  }
  const std::string slots = environment.get("LSB_MCPU_HOSTS").value_or("");
  if (found.empty() && std::count(slots.begin(), slots.end(), ' ') > 2) found = shown(environment, "LSB_MCPU_HOSTS");
  if (found.empty()) return {};
  const std::string by =
      one.origins.num_workers.empty() ? one.source : fmt::format("{} ({})", one.source, one.origins.num_workers);
  return {
      fmt::format("{} says that this job has several hosts, and {} describes one worker: it trains alone", found, by)};
}

}  // namespace lockstep::internal::cluster
