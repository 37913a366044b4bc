#include "lockstep/exchange/hosts.h"

#include <algorithm>

#include "lockstep/core/blocks.h"

namespace lockstep::internal::inline exchange {

Hosts::Hosts(const std::vector<int64_t>& host_ids) {
  std::vector<int64_t> distinct;
  for (const int64_t id : host_ids) {
    const auto found = std::find(distinct.begin(), distinct.end(), id);
    const auto host = static_cast<std::size_t>(found - distinct.begin());
    if (found == distinct.end()) {
      distinct.push_back(id);
      workers_.emplace_back();
    }
    workers_[host].push_back(static_cast<int64_t>(host_of_.size()));
    host_of_.push_back(static_cast<int64_t>(host));
  }
}

int64_t Hosts::partner(int64_t host, int64_t worker) const {
  const std::vector<int64_t>& workers = workers_of(host);
  std::size_t foreign = 0;  // workers of other hosts before `worker`
  for (int64_t w = 0; w < worker; ++w) foreign += host_of(w) == host ? 0 : 1;
  return workers[foreign % workers.size()];
}

std::vector<int64_t> Hosts::replicas(int64_t host, int64_t num_replicas) const {
  std::vector<int64_t> ids;
  for (const int64_t w : workers_of(host)) {
    const Block block = block_of(num_replicas, num_workers(), w);
    for (int64_t r = block.first; r < block.end(); ++r) ids.push_back(r);
  }
  return ids;
}

std::vector<Subtree> Hosts::subtrees(int64_t host, int64_t num_replicas) const {
  std::vector<Subtree> all;
  const std::vector<int64_t>& workers = workers_of(host);
  for (std::size_t begin = 0; begin < workers.size();) {
    // Neighbouring workers have neighbouring replicas.
    std::size_t end = begin + 1;
    while (end < workers.size() && workers[end] == workers[end - 1] + 1) ++end;
    const int64_t first = block_of(num_replicas, num_workers(), workers[begin]).first;
    const int64_t last = block_of(num_replicas, num_workers(), workers[end - 1]).end();
    for (const Subtree& one : maximal_subtrees(num_replicas, first, last - first)) all.push_back(one);
    begin = end;
  }
  return all;
}

}  // namespace lockstep::internal::exchange
