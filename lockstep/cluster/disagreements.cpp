#include "lockstep/cluster/disagreements.h"

#include <fmt/format.h>

#include "lockstep/cluster/address.h"
#include "lockstep/core/counted.h"

namespace lockstep::internal::inline cluster {

namespace {

/// "Slurm (SLURM_PROCID=3)", or without the variable where it is not known.
std::string who(const ClusterSpec& spec, const std::string& origin) {
  return origin.empty() || origin == spec.source ? spec.source : fmt::format("{} ({})", spec.source, origin);
}

bool is_worker(const ClusterSpec& spec) { return spec.job == "worker" || spec.job == "chief"; }

}  // namespace

std::vector<std::string> disagreements_of(const ClusterSpec& winner, const ClusterSpec& other) {
  std::vector<std::string> result;
  if (!is_worker(winner) || !is_worker(other)) return result;
  if (winner.num_workers() != other.num_workers()) {
    result.push_back(fmt::format("{} says {}, and {} says {}", who(winner, winner.origins.num_workers),
                                 counted(winner.num_workers(), "worker"), who(other, other.origins.num_workers),
                                 other.num_workers()));
  }
  if (winner.worker_index() != other.worker_index()) {
    result.push_back(fmt::format("{} says worker {}, and {} says {}", who(winner, winner.origins.worker_index),
                                 winner.worker_index(), who(other, other.origins.worker_index), other.worker_index()));
  }
  const std::string chief = winner.chief_address();
  const std::string other_chief = other.chief_address();
  if (!chief.empty() && !other_chief.empty()) {
    const Address a = parse_address({"the chief's address", chief});
    const Address b = parse_address({"the chief's address", other_chief});
    const bool both_know_ports = !winner.origins.chief_port.empty() && !other.origins.chief_port.empty();
    if (hosts_differ(a.host, b.host)) {
      result.push_back(fmt::format("{} says that the chief is {}, and {} says {}",
                                   who(winner, winner.origins.chief_host), chief, who(other, other.origins.chief_host),
                                   other_chief));
    } else if (both_know_ports && a.port != b.port) {
      result.push_back(fmt::format("{} says that the chief's port is {}, and {} says {}",
                                   who(winner, winner.origins.chief_port), a.port, who(other, other.origins.chief_port),
                                   b.port));
    }
  }
  if (!winner.origins.local_worker.empty() && !other.origins.local_worker.empty() &&
      winner.local_worker != other.local_worker) {
    result.push_back(fmt::format("{} says worker {} of this host, and {} says {}",
                                 who(winner, winner.origins.local_worker), winner.local_worker,
                                 who(other, other.origins.local_worker), other.local_worker));
  }
  return result;
}

bool counts_hosts(const ClusterSpec& winner, const ClusterSpec& other, const Environment& environment) {
  if (!is_worker(winner) || !is_worker(other) || winner.num_workers() <= other.num_workers()) return false;
  const auto is = [&](const char* variable, int64_t value) {
    return environment.get(variable).value_or("") == std::to_string(value);
  };
  return is("GROUP_WORLD_SIZE", other.num_workers()) && is("GROUP_RANK", other.worker_index());
}

}  // namespace lockstep::internal::cluster
