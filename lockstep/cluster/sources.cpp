#include "lockstep/cluster/sources.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/core/error.h"

namespace lockstep::internal {

void require(const Environment& environment, const std::string& present, std::initializer_list<const char*> needed) {
  for (const char* name : needed) {
    if (environment.has(name)) continue;
    throw ClusterError("LS-CLUSTER-INCOMPLETE", fmt::format("{} is set, and {} is not", present, name),
                       fmt::format("set {} as well, on each worker", name));
  }
}

ClusterSpec workers(int64_t count, int64_t index) {
  ClusterSpec spec;
  spec.jobs["worker"].resize(static_cast<std::size_t>(count));
  spec.task = index;
  return spec;
}

ClusterSpec rank_and_size(const Environment& environment, const char* rank, const char* size) {
  require(environment, shown(environment, environment.has(rank) ? rank : size), {rank, size});
  const int64_t count = *environment.integer(size, 1, kMostTasks);
  ClusterSpec spec = workers(count, *environment.integer(rank, 0, count - 1));
  spec.origins.num_workers = shown(environment, size);
  spec.origins.worker_index = shown(environment, rank);
  return spec;
}

void set_chief_address(ClusterSpec& spec, const std::string& address) {
  std::vector<std::string>& chief = spec.jobs["chief"];
  if (!chief.empty()) {
    chief.front() = address;
    return;
  }
  spec.jobs.erase("chief");
  std::vector<std::string>& all = spec.jobs["worker"];
  if (all.empty()) all.emplace_back();
  all.front() = address;
}

void set_chief_from_master(ClusterSpec& spec, const Environment& environment) {
  const std::optional<std::string> host = environment.get("MASTER_ADDR");
  if (!host) return;
  const int64_t port = environment.integer("MASTER_PORT", 1, 65535).value_or(port_of_job(spec.job_id));
  set_chief_address(spec, to_string(Address{parse_host({"MASTER_ADDR", *host}), static_cast<uint16_t>(port)}));
  spec.origins.chief_host = shown(environment, "MASTER_ADDR");
  spec.origins.chief_port = shown(environment, "MASTER_PORT");
}

void set_chief_of_mpi(ClusterSpec& spec, const Environment& environment, const char* local_size) {
  set_chief_from_master(spec, environment);
  if (!spec.chief_address().empty() || environment.integer(local_size, 1, kMostTasks) != spec.num_workers()) return;
  set_chief_address(spec, to_string(Address{"127.0.0.1", port_of_job(spec.job_id)}));
}

void set_local_worker(ClusterSpec& spec, const Environment& environment, const char* variable) {
  const std::optional<int64_t> value = environment.integer(variable, 0, kMostTasks - 1);
  if (!value) return;
  spec.local_worker = *value;
  spec.origins.local_worker = shown(environment, variable);
}

uint16_t port_of_job(const std::string& job_id) {
  uint32_t hash = 2166136261u;
  for (const char c : job_id) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return static_cast<uint16_t>(20000 + hash % 9000);
}

std::string job_id_of(const Environment& environment, std::initializer_list<const char*> variables) {
  std::string id = environment.get("LOCKSTEP_JOB_ID").value_or("");
  for (const char* name : variables) {
    if (id.empty()) id = environment.get(name).value_or("");
  }
  return id;
}

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
        fmt::format("start the program by its launcher, which sets RANK, WORLD_SIZE and MASTER_ADDR; or unset {}, "
                    "where it is meant to be alone",
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

}  // namespace lockstep::internal
