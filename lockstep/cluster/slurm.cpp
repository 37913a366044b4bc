// A step of Slurm, which srun makes.
#include <fmt/format.h>

#include <set>

#include "lockstep/cluster/host_list.h"
#include "lockstep/cluster/sources.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {

namespace {

/// Numbers of steps from here on are not srun's: the script of sbatch, the shell of salloc.
constexpr int64_t kFirstSpecialStep = 0xfffffff0;

bool in_step(const Environment& environment) {
  if (!environment.has("SLURM_STEP_NUM_TASKS")) return false;
  const std::optional<int64_t> step = environment.integer("SLURM_STEP_ID", 0, 0xffffffff);
  return !step || *step < kFirstSpecialStep;
}

/// The address of each task, dealt to the nodes in blocks: the first node has the first tasks. A task's port is that of
/// the job plus its number on its node.
std::vector<std::string> addresses_of(const std::vector<std::string>& hosts, const std::vector<int64_t>& tasks,
                                      int64_t port) {
  std::vector<std::string> addresses;
  for (std::size_t node = 0; node < hosts.size(); ++node) {
    for (int64_t local = 0; local < tasks[node]; ++local) {
      // A node with thousands of tasks has no ports for all: only the chief's is used.
      const int64_t own = port + local;
      addresses.push_back(own > 65535 ? "" : to_string(Address{hosts[node], static_cast<uint16_t>(own)}));
    }
  }
  return addresses;
}

struct Place {
  std::size_t node = 0;
  int64_t local = 0;
};

/// Where task `task` is, if the tasks are dealt in blocks.
Place place_of(int64_t task, const std::vector<int64_t>& tasks) {
  Place place{0, task};
  while (place.local >= tasks[place.node]) place.local -= tasks[place.node++];
  return place;
}

/// Fills the addresses. Where the tasks are not dealt in blocks, only task 0 is known: it is on the first node.
void set_addresses(ClusterSpec& spec, const Environment& environment) {
  const auto count = spec.num_workers();
  if (count == 1 && !environment.has("SLURM_STEP_NODELIST")) return;
  require(environment, shown(environment, "SLURM_STEP_NUM_TASKS"), {"SLURM_STEP_NODELIST"});
  const NamedText list{"SLURM_STEP_NODELIST", *environment.get("SLURM_STEP_NODELIST")};
  const std::vector<std::string> hosts = expand_host_list(list, kMostTasks);
  const uint16_t port = port_of_job(spec.job_id);
  set_chief_address(spec, to_string(Address{hosts.front(), port}));
  spec.origins.chief_host = shown(environment, "SLURM_STEP_NODELIST");

  const std::optional<std::string> per_node = environment.get("SLURM_STEP_TASKS_PER_NODE");
  if (!per_node) return;
  const std::vector<int64_t> tasks = expand_tasks_per_node({"SLURM_STEP_TASKS_PER_NODE", *per_node}, kMostTasks);
  int64_t sum = 0;
  for (const int64_t n : tasks) sum += n;
  if (tasks.size() != hosts.size() || sum != count) {
    throw ClusterError(
        "LS-CLUSTER-SPEC",
        fmt::format("the cluster's description contradicts itself: {} is {} tasks on {} nodes, and there are {} and {}",
                    shown(environment, "SLURM_STEP_TASKS_PER_NODE"), sum, tasks.size(),
                    shown(environment, "SLURM_STEP_NUM_TASKS"), shown(environment, "SLURM_STEP_NODELIST")),
        "leave the variables of Slurm as srun sets them");
  }
  const std::string distribution = environment.get("SLURM_DISTRIBUTION").value_or("block");
  const Place place = place_of(spec.task, tasks);
  const int64_t node = environment.integer("SLURM_NODEID", 0, kMostTasks).value_or(static_cast<int64_t>(place.node));
  const int64_t local = environment.integer("SLURM_LOCALID", 0, kMostTasks).value_or(place.local);
  if (!distribution.starts_with("block") || node != static_cast<int64_t>(place.node) || local != place.local) return;
  // A node that is named twice would give two tasks one address.
  if (std::set<std::string>(hosts.begin(), hosts.end()).size() != hosts.size()) return;
  spec.jobs["worker"] = addresses_of(hosts, tasks, port);
  if (!environment.has("SLURM_LOCALID")) spec.local_worker = place.local;
}

}  // namespace

std::optional<ClusterSpec> slurm(const Environment& environment) {
  if (!in_step(environment)) return std::nullopt;
  ClusterSpec spec = rank_and_size(environment, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS");
  spec.job_id = job_id_of(environment, {"SLURM_JOB_ID", "SLURM_JOBID"});
  const std::optional<std::string> step = environment.get("SLURM_STEP_ID");
  if (!environment.has("LOCKSTEP_JOB_ID") && !spec.job_id.empty() && step) spec.job_id += "." + *step;
  set_local_worker(spec, environment, "SLURM_LOCALID");
  set_addresses(spec, environment);
  return spec;
}

}  // namespace lockstep::internal
