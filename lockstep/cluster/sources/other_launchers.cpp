#include "lockstep/cluster/sources/other_launchers.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "lockstep/cluster/sources.h"

namespace lockstep::internal::inline cluster {

namespace {

/// A launcher's variables; an empty name where it has none.
struct Launcher {
  std::string_view name;
  std::string_view rank;
  std::string_view size;
  std::string_view local_rank;
  std::string_view local_size;
  std::string_view hosts;  // how many
  std::string_view job;
};

constexpr std::array<Launcher, 7> kLaunchers = {{
    {"Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "", "FLUX_JOB_NNODES", "FLUX_JOB_ID"},
    {"PALS", "PALS_RANKID", "", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", "", "PALS_APID"},
    {"JSM", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE", "",
     "LSB_JOBID"},
    {"ALPS", "ALPS_APP_PE", "", "", "", "", "ALPS_APP_ID"},
    {"POE", "MP_CHILD", "MP_PROCS", "", "", "", ""},
    {"Horovod", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "", ""},
    {"mpirun_rsh", "MPIRUN_RANK", "MPIRUN_NPROCS", "", "", "", "MPIRUN_ID"},
}};

/// Variables of launchers, of those above and of others, that tell a part of a process's place. A program that is alone
/// has none of them.
constexpr std::array<std::string_view, 19> kPlaces = {"PALS_NODEID",
                                                      "PALS_LOCAL_RANKID",
                                                      "PALS_LOCAL_SIZE",
                                                      "FLUX_TASK_LOCAL_ID",
                                                      "JSM_NAMESPACE_LOCAL_RANK",
                                                      "JSM_NAMESPACE_LOCAL_SIZE",
                                                      "HOROVOD_LOCAL_RANK",
                                                      "HOROVOD_LOCAL_SIZE",
                                                      "PMIX_RANK",
                                                      "PMI_ID",
                                                      "PMI_LOCAL_RANK",
                                                      "PMI_LOCAL_SIZE",
                                                      "MPI_LOCALRANKID",
                                                      "MPI_LOCALNRANKS",
                                                      "OMPI_COMM_WORLD_LOCAL_RANK",
                                                      "OMPI_COMM_WORLD_LOCAL_SIZE",
                                                      "OMPI_COMM_WORLD_NODE_RANK",
                                                      "MV2_COMM_WORLD_LOCAL_RANK",
                                                      "MV2_COMM_WORLD_LOCAL_SIZE"};

/// Ranks that programs and scripts set as well: 0 is also what a single process is left with.
constexpr std::array<std::string_view, 6> kFromOne = {"LOCAL_RANK", "GROUP_RANK",   "ROLE_RANK",
                                                      "NODE_RANK",  "SLURM_PROCID", "SLURM_NODEID"};

bool is_set(const Environment& environment, std::string_view name) {
  return !name.empty() && environment.has(std::string(name));
}

const Launcher* launcher_of(const Environment& environment) {
  const auto found = std::find_if(kLaunchers.begin(), kLaunchers.end(), [&](const Launcher& one) {
    return is_set(environment, one.rank) || is_set(environment, one.size);
  });
  return found == kLaunchers.end() ? nullptr : &*found;
}

/// The variable that has the number of processes.
std::string size_variable(const Launcher& launcher, const Environment& environment) {
  if (!launcher.size.empty()) return std::string(launcher.size);
  // PALS and ALPS also start PMI.
  return environment.has("PMI_SIZE") ? "PMI_SIZE" : "LOCKSTEP_NUM_WORKERS";
}

bool is_whole_number(const std::optional<std::string>& text) {
  return text && text->size() <= 9 &&
         std::all_of(text->begin(), text->end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// The first of "<prefix>SIZE" and the like that is a number above the rank and above one; empty where none is.
std::string size_beside(const Environment& environment, const std::string& prefix, const std::string& rank) {
  for (const char* word : {"SIZE", "WORLD_SIZE", "NPROCS", "NTASKS", "NRANKS", "COUNT"}) {
    const std::optional<std::string> size = environment.get(prefix + word);
    if (is_whole_number(size) && is_above_one(size) && std::stoi(rank) < std::stoi(*size)) return prefix + word;
  }
  return "";
}

/// A rank and a size whose names have a prefix in common, "ACME_RANK=1" and "ACME_SIZE=4".
void add_unknown_pair(const Environment& environment, std::vector<std::string>& seen) {
  for (const auto& [name, value] : environment.variables()) {
    if (name.starts_with("SLURM_")) continue;  // the script of a job has these as well
    for (const char* word : {"RANK", "RANKID", "RANK_ID", "PROCID", "TASK_RANK"}) {
      const std::string ending = std::string("_") + word;
      if (!name.ends_with(ending) || !is_whole_number(environment.get(name))) continue;
      const std::string size = size_beside(environment, name.substr(0, name.size() - ending.size() + 1), value);
      if (size.empty()) continue;
      seen.push_back(shown(environment, name));
      seen.push_back(shown(environment, size));
      return;
    }
  }
}

}  // namespace

std::string name_of_other_launcher(const Environment& environment) {
  const Launcher* const launcher = launcher_of(environment);
  return launcher == nullptr ? "" : std::string(launcher->name);
}

std::optional<ClusterSpec> other_launcher(const Environment& environment) {
  const Launcher* const launcher = launcher_of(environment);
  if (launcher == nullptr) return std::nullopt;
  const std::string rank(launcher->rank);
  const std::string size = size_variable(*launcher, environment);
  const bool is_one = environment.get(size) == "1";
  // One worker by LOCKSTEP_NUM_WORKERS is what a user says, and no number of this launcher.
  if (is_one && size == "LOCKSTEP_NUM_WORKERS") return std::nullopt;
  if (!environment.has(size) || (!is_one && !environment.has(rank))) {
    throw_one_of_several(ranks_that_nobody_reads(environment));
  }
  ClusterSpec spec =
      is_one && !environment.has(rank) ? workers(1, 0) : rank_and_size(environment, rank.c_str(), size.c_str());
  const std::string job(launcher->job);
  spec.job_id = job_id_of(environment, {job.c_str()});
  set_local_worker(spec, environment, std::string(launcher->local_rank).c_str());
  set_chief_of_mpi(spec, environment, std::string(launcher->local_size).c_str());
  if (spec.chief_address().empty() && environment.integer(std::string(launcher->hosts), 1, kMostTasks) == 1) {
    set_chief_address(spec, to_string(Address{"127.0.0.1", port_of_job(spec.job_id)}));
  }
  return spec;
}

bool is_of_other_launcher(std::string_view variable) {
  if (std::find(kPlaces.begin(), kPlaces.end(), variable) != kPlaces.end()) return true;
  return std::any_of(kLaunchers.begin(), kLaunchers.end(), [&](const Launcher& one) {
    return variable == one.rank || (variable == one.size && !one.size.empty()) ||
           (variable == one.hosts && !one.hosts.empty());
  });
}

std::vector<std::string> ranks_that_nobody_reads(const Environment& environment) {
  std::vector<std::string> seen;
  for (const Launcher& launcher : kLaunchers) {
    for (const std::string_view name : {launcher.rank, launcher.size}) {
      if (is_set(environment, name)) seen.push_back(shown(environment, std::string(name)));
    }
  }
  for (const std::string_view name : kPlaces) {
    if (is_set(environment, name)) seen.push_back(shown(environment, std::string(name)));
  }
  for (const std::string_view name : kFromOne) {
    const std::optional<std::string> value = environment.get(std::string(name));
    if (is_whole_number(value) && std::stoi(*value) > 0) seen.push_back(shown(environment, std::string(name)));
  }
  // WORLD_SIZE=1 and RANK=0 are left over from a single process. RANK by itself is what the first of several has, too.
  const std::optional<std::string> rank = environment.get("RANK");
  if (is_whole_number(rank) && (!environment.has("WORLD_SIZE") || std::stoi(*rank) > 0)) {
    seen.push_back(shown(environment, "RANK"));
  }
  add_unknown_pair(environment, seen);
  return seen;
}

}  // namespace lockstep::internal::cluster
