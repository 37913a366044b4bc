// Which workers share the memory of a host, and which of them exchanges bytes with a worker of another host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/reduce/addition_order.h"

namespace lockstep::internal::inline exchange {

/// Pure, and equal on all workers.
class Hosts {
 public:
  /// `host_ids[w]` is a number that the workers of worker w's host share.
  explicit Hosts(const std::vector<int64_t>& host_ids);

  int64_t count() const { return static_cast<int64_t>(workers_.size()); }
  int64_t num_workers() const { return static_cast<int64_t>(host_of_.size()); }
  /// From 0, in the order of the hosts' first workers.
  int64_t host_of(int64_t worker) const { return host_of_[static_cast<std::size_t>(worker)]; }
  /// In ascending order.
  const std::vector<int64_t>& workers_of(int64_t host) const { return workers_[static_cast<std::size_t>(host)]; }
  /// The worker of `host` that exchanges bytes with `worker`, which is on another host. The workers of all other hosts
  /// are dealt in turn to those of `host`, so that each of these has as many partners, or one more.
  int64_t partner(int64_t host, int64_t worker) const;
  /// The replicas of the host's workers, in ascending order, where the run has `num_replicas`.
  std::vector<int64_t> replicas(int64_t host, int64_t num_replicas) const;
  /// Subtrees of the tree over `num_replicas` that make up the replicas of the host's workers, in order. There are as
  /// few as can be for each row of neighbouring workers.
  std::vector<Subtree> subtrees(int64_t host, int64_t num_replicas) const;

 private:
  std::vector<int64_t> host_of_;               // by worker
  std::vector<std::vector<int64_t>> workers_;  // by host
};

}  // namespace lockstep::internal::exchange
