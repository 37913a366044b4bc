#include "tools/run/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "lockstep/cluster/named_text.h"
#include "lockstep/cluster/sources/environment.h"
#include "lockstep/comm/join/interfaces.h"
#include "lockstep/comm/join/this_host.h"
#include "lockstep/core/counted.h"
#include "lockstep/core/error.h"
#include "tools/run/hosts_file.h"

namespace lockstep::tools {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Looks names up until half a minute is over; then none is found any more.
LookUp look_up_for_half_a_minute() {
  const auto end = std::chrono::steady_clock::now() + seconds(30);
  return [end](const std::string& host) {
    const auto left = std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
    return internal::look_up(host, std::clamp<milliseconds>(left, milliseconds(0), seconds(10)));
  };
}

ThisHost this_host() {
  ThisHost self{.name = internal::host_name(), .addresses = {}};
  for (const internal::InterfaceAddress& one : internal::network_interfaces()) self.addresses.push_back(one.address);
  return self;
}

std::size_t host_of(const RunOptions& options, const std::vector<HostLine>& hosts) {
  if (options.host_index < 0) return index_of(this_host(), hosts, look_up_for_half_a_minute());
  const auto index = static_cast<std::size_t>(options.host_index);
  if (index >= hosts.size()) {
    throw UsageError("LS-HOST-INDEX",
                     fmt::format("--host-index is {}, and {} names {}", index, internal::in_quotes(options.hosts),
                                 internal::counted(static_cast<int64_t>(hosts.size()), "host")),
                     fmt::format("give a number from 0 to {}", hosts.size() - 1));
  }
  return index;
}

bool environment_has_secret() {
  const Environment environment = Environment::of_process();
  return environment.has("LOCKSTEP_SECRET") || environment.has("LOCKSTEP_SECRET_FILE");
}

void require_workers(const RunOptions& options) {
  if (options.workers == 0) throw UsageError("LS-FLAG", "lockstep run was not told how many workers", "add -n N");
}

/// Gives the job its tasks, with parameter servers, on these hosts.
void deal(Job& job, const RunOptions& options, const std::vector<HostLine>& hosts) {
  constexpr int kMostNumbered = 4096;  // whose addresses TF_CONFIG can list
  require_workers(options);
  const TaskCounts counts{
      .workers = options.workers, .servers = options.servers, .has_evaluator = options.has_evaluator};
  if (counts.numbered() > kMostNumbered) {
    throw UsageError("LS-FLAG", fmt::format("the job has {} tasks", counts.numbered()),
                     fmt::format("give -n and --ps so that there are at most {}, the chief included", kMostNumbered));
  }
  const std::vector<TaskBlock> blocks = deal_tasks(counts, hosts);
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    for (int local = 0; local < blocks[host].count; ++local) job.places.push_back({hosts[host].host, local});
  }
  const TaskBlock& own = blocks[static_cast<std::size_t>(job.share.host)];
  job.share.first_worker = own.first;
  job.share.workers = own.count;
  job.share.num_workers = counts.numbered();
  const auto most = std::max_element(blocks.begin(), blocks.end(),
                                     [](const TaskBlock& a, const TaskBlock& b) { return a.count < b.count; });
  if (job.port + most->count > 65536) {
    throw UsageError(
        "LS-FLAG",
        fmt::format("--port is {}, and {} tasks of a host need a port each, from this one on", job.port, most->count),
        fmt::format("give --port at most {}", 65536 - most->count));
  }
  job.tasks = counts;
}

Job job_on_hosts(const RunOptions& options) {
  const std::vector<HostLine> hosts = read_hosts(options.hosts);
  const uint16_t port = options.port != 0 ? options.port : kPortOfHosts;
  const std::size_t host = host_of(options, hosts);
  Job job{.share = {.host = static_cast<int>(host), .num_hosts = static_cast<int>(hosts.size())},
          .chief_host = hosts.front().host,
          .port = port,
          .id = options.job_id.empty() ? job_id_of(hosts, port) : options.job_id,
          .has_own_secret = environment_has_secret()};
  if (options.servers > 0) {
    deal(job, options, hosts);
  } else {
    job.share = share_of(hosts, host, options.workers);
  }
  if (hosts.size() > 1 && !job.has_own_secret) {
    throw ClusterError("LS-CLUSTER-SECRET",
                       fmt::format("{} names {} hosts, and their launchers have no secret in common",
                                   internal::in_quotes(options.hosts), hosts.size()),
                       "make one with: openssl rand -hex 32; then set LOCKSTEP_SECRET_FILE to a file that has it, or "
                       "LOCKSTEP_SECRET to itself, on each host");
  }
  return job;
}

}  // namespace

Job job_of(const RunOptions& options) {
  if (!options.hosts.empty()) return job_on_hosts(options);
  require_workers(options);
  Job job{.share = {.workers = options.workers, .num_workers = options.workers},
          .chief_host = "127.0.0.1",
          .port = options.port,
          .id = options.job_id};
  if (options.servers > 0) deal(job, options, {{.host = job.chief_host}});
  return job;
}

}  // namespace lockstep::tools
