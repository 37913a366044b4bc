#include "lockstep/cluster/sources.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/error.h"

namespace lockstep::internal::inline cluster {

void require(const Environment& environment, const std::string& present, std::initializer_list<const char*> needed) {
  for (const std::string name : needed) {
    if (environment.has(name)) continue;
    const char* other = name.starts_with("LOCKSTEP_") ? "" : ", or LOCKSTEP_NUM_WORKERS and LOCKSTEP_WORKER_INDEX";
    throw ClusterError("LS-CLUSTER-INCOMPLETE", fmt::format("{} is set, and {} is not", present, name),
                       fmt::format("set {} as well{}, on each worker", name, other));
  }
}

void throw_one_of_several(const std::vector<std::string>& seen) {
  throw ClusterError(
      "LS-CLUSTER-INCOMPLETE",
      fmt::format("the environment says that this process is one of several ({}), and not which of how "
                  "many: this worker would train alone",
                  fmt::join(seen, ", ")),
      "set LOCKSTEP_NUM_WORKERS and LOCKSTEP_WORKER_INDEX, on each worker, and LOCKSTEP_CHIEF_ADDRESS to "
      "worker 0's host:port; or LOCKSTEP_NUM_WORKERS=1, where it is meant to be alone");
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

}  // namespace lockstep::internal::cluster
