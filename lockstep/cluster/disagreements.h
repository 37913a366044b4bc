// What two sources say differently about one cluster.
#pragma once

#include <string>
#include <vector>

#include "lockstep/cluster/cluster_spec.h"
#include "lockstep/cluster/sources/environment.h"

namespace lockstep::internal::inline cluster {

/// A sentence for each fact that both specs know and that differs: how many workers, which of them this process is, the
/// chief's address, which worker of its host. Each names both sources, their variables and values. A spec of a job
/// without workers' numbers, an evaluator or a parameter server, is not compared.
std::vector<std::string> disagreements_of(const ClusterSpec& winner, const ClusterSpec& other);

/// Whether `other` counts hosts where `winner` counts workers: a launcher that was started once on each host, such as
/// srun, started the launcher that `winner` comes from. GROUP_RANK and GROUP_WORLD_SIZE, which torchrun sets, are then
/// the other's index and count.
bool counts_hosts(const ClusterSpec& winner, const ClusterSpec& other, const Environment& environment);

}  // namespace lockstep::internal::cluster
