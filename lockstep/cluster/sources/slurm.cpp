// A step of Slurm, which srun makes.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <system_error>

#include "lockstep/cluster/host_list.h"
#include "lockstep/cluster/sources.h"
#include "lockstep/core/error.h"

namespace lockstep::internal::inline cluster {

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

/// Whether task `task` is there, if the tasks are dealt to the nodes in turn.
bool is_cyclic(int64_t task, std::size_t node, int64_t local, const std::vector<int64_t>& tasks) {
  if (node >= tasks.size() || local >= tasks[node]) return false;
  int64_t before = 0;
  for (std::size_t n = 0; n < tasks.size(); ++n) before += std::min(tasks[n], n < node ? local + 1 : local);
  return before == task;
}

/// Whether the tasks may be anywhere, as a file of hosts says. Slurm sorts the list of nodes all the same, so that its
/// first one need not have task 0.
bool is_arbitrary(const Environment& environment) {
  const std::string distribution = environment.get("SLURM_DISTRIBUTION").value_or("");
  return distribution.starts_with("arbitrary") || (distribution.empty() && environment.has("SLURM_HOSTFILE"));
}

/// What a line of Slurm's file of hosts adds, "n1", "n[1-2]*3".
void add_line(std::vector<std::string>& hosts, std::string line, int64_t most) {
  line.erase(std::min(line.find('#'), line.size()));
  std::erase_if(line, [](char c) { return c == ' ' || c == '\t' || c == '\r'; });
  if (line.empty()) return;
  int64_t times = 1;
  if (const std::size_t star = line.rfind('*'); star != std::string::npos) {
    times = whole_number({"a number in SLURM_HOSTFILE", line.substr(star + 1)}, 1, kMostTasks);
    line.erase(star);
  }
  for (const std::string& host : expand_host_list({"a line of SLURM_HOSTFILE", line}, kMostTasks)) {
    for (int64_t i = 0; i < times && static_cast<int64_t>(hosts.size()) < most; ++i) hosts.push_back(host);
  }
}

/// The host of each task by the file of hosts; nothing where it cannot be read here, or is not the step's.
std::vector<std::string> hosts_by_file(const Environment& environment, const ClusterSpec& spec,
                                       const std::vector<std::string>& step) {
  constexpr std::uintmax_t kLongestFile = 16u << 20;  // bytes
  const std::string path = environment.get("SLURM_HOSTFILE").value_or("");
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error || size > kLongestFile) return {};
  std::ifstream file(path);
  std::vector<std::string> hosts;
  try {
    for (std::string line; static_cast<int64_t>(hosts.size()) < spec.num_workers() && std::getline(file, line);) {
      add_line(hosts, line, spec.num_workers());
    }
  } catch (const Error&) {
    return {};  // a line that Slurm writes otherwise than we know
  }
  if (static_cast<int64_t>(hosts.size()) != spec.num_workers()) return {};
  const std::set<std::string> named(hosts.begin(), hosts.end());
  if (named != std::set<std::string>(step.begin(), step.end())) return {};
  const std::string own = environment.get("SLURMD_NODENAME").value_or("");
  if (!own.empty() && hosts_differ(own, hosts[static_cast<std::size_t>(spec.task)])) return {};
  return hosts;
}

/// Addresses for tasks on these hosts; a task's port is that of the job plus its number on its host.
std::vector<std::string> addresses_on(const std::vector<std::string>& host_of_task, int64_t port) {
  std::map<std::string, int64_t> before;
  std::vector<std::string> addresses;
  for (const std::string& host : host_of_task) {
    const int64_t own = port + before[host]++;
    addresses.push_back(own > 65535 ? "" : to_string(Address{host, static_cast<uint16_t>(own)}));
  }
  return addresses;
}

/// What shows that task 0 is not on the first node, or may be on any; empty where nothing does. `tasks` is empty where
/// Slurm does not tell how many each node has.
std::string doubt_about_task_0(const ClusterSpec& spec, const Environment& environment,
                               const std::vector<std::string>& hosts, const std::vector<int64_t>& tasks) {
  if (std::all_of(hosts.begin(), hosts.end(), [&](const std::string& host) { return host == hosts.front(); }))
    return "";
  if (is_arbitrary(environment)) {
    return shown(environment, environment.has("SLURM_DISTRIBUTION") ? "SLURM_DISTRIBUTION" : "SLURM_HOSTFILE");
  }
  const std::optional<int64_t> node = environment.integer("SLURM_NODEID", 0, kMostTasks);
  const std::optional<int64_t> local = environment.integer("SLURM_LOCALID", 0, kMostTasks);
  if (!node) return "";
  const std::string place = shown(environment, "SLURM_PROCID") + ", " + shown(environment, "SLURM_NODEID");
  const std::string own = environment.get("SLURMD_NODENAME").value_or("");
  const auto index = static_cast<std::size_t>(*node);
  if (!own.empty() && index < hosts.size() && hosts_differ(own, hosts[index])) {
    return fmt::format("{}, {}", place, shown(environment, "SLURMD_NODENAME"));
  }
  // The lowest task of a node is its first one.
  if (spec.task == 0 ? *node != 0 : *node == 0 && local == 0) return place;
  // Who deals in blocks, in turn or in planes begins with the first node.
  if (environment.has("SLURM_DISTRIBUTION") || tasks.empty() || !local) return "";
  const Place block = place_of(spec.task, tasks);
  const bool is_block = block.node == index && block.local == *local;
  return is_block || is_cyclic(spec.task, index, *local, tasks)
             ? ""
             : fmt::format("{}, {}", place, shown(environment, "SLURM_LOCALID"));
}

void check_tasks(const ClusterSpec& spec, const Environment& environment, const std::vector<std::string>& hosts,
                 const std::vector<int64_t>& tasks) {
  int64_t sum = 0;
  for (const int64_t n : tasks) sum += n;
  if (tasks.size() != hosts.size() || sum != spec.num_workers()) {
    throw ClusterError(
        "LS-CLUSTER-SPEC",
        fmt::format("the cluster's description contradicts itself: {} is {} tasks on {} nodes, and there are {} and {}",
                    shown(environment, "SLURM_STEP_TASKS_PER_NODE"), sum, tasks.size(),
                    shown(environment, "SLURM_STEP_NUM_TASKS"), shown(environment, "SLURM_STEP_NODELIST")),
        "leave the variables of Slurm as srun sets them");
  }
}

/// Fills the addresses. Where the tasks are not dealt in blocks, only task 0 is known: it is on the first node. Where
/// it may be on any, the chief's address stays empty, and its origin says why.
void set_addresses(ClusterSpec& spec, const Environment& environment) {
  const auto count = spec.num_workers();
  if (count == 1 && !environment.has("SLURM_STEP_NODELIST")) return;
  require(environment, shown(environment, "SLURM_STEP_NUM_TASKS"), {"SLURM_STEP_NODELIST"});
  const NamedText list{"SLURM_STEP_NODELIST", *environment.get("SLURM_STEP_NODELIST")};
  const std::vector<std::string> hosts = expand_host_list(list, kMostTasks);
  const uint16_t port = port_of_job(spec.job_id);
  spec.origins.chief_host = shown(environment, "SLURM_STEP_NODELIST");

  const std::optional<std::string> per_node = environment.get("SLURM_STEP_TASKS_PER_NODE");
  const std::vector<int64_t> tasks =
      per_node ? expand_tasks_per_node({"SLURM_STEP_TASKS_PER_NODE", *per_node}, kMostTasks) : std::vector<int64_t>();
  if (per_node) check_tasks(spec, environment, hosts, tasks);
  const std::string doubt = doubt_about_task_0(spec, environment, hosts, tasks);
  if (!doubt.empty()) {
    const std::vector<std::string> by_file =
        is_arbitrary(environment) ? hosts_by_file(environment, spec, hosts) : std::vector<std::string>();
    if (by_file.empty()) {
      spec.origins.chief_host = fmt::format("by {} task 0 need not be on the first host of {}", doubt,
                                            shown(environment, "SLURM_STEP_NODELIST"));
      return;
    }
    spec.jobs["worker"] = addresses_on(by_file, port);
    spec.origins.chief_host = shown(environment, "SLURM_HOSTFILE");
    return;
  }
  set_chief_address(spec, to_string(Address{hosts.front(), port}));
  if (!per_node) return;
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

}  // namespace lockstep::internal::cluster
