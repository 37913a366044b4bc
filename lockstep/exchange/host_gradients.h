// From the gradients of this worker's replicas to what an update that all workers of a host share adds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/exchange/factor_exchange.h"
#include "lockstep/exchange/hosts.h"
#include "lockstep/exchange/partial_sums.h"
#include "lockstep/exchange/row.h"
#include "lockstep/exchange/sums_between_hosts.h"
#include "lockstep/exchange/travelled.h"
#include "lockstep/gradient/block_shares.h"
#include "lockstep/gradient/gradients_on_workers.h"

namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica

namespace lockstep::internal::inline exchange {

/// Inside a host nothing travels: what other workers need lies in memory that all workers of the host map. That is each
/// worker's partial sums, one for each maximal subtree of its block of replicas, of the blocks that other workers
/// update; or, where every replica keeps a gradient as factors, the factors. So each gradient is added up, or made from
/// its factors, once for each host.
///
/// With several hosts, sums travel between them (sums_between_hosts.h), or factors where these are smaller: each worker
/// sends those of its replicas to its partner on every other host, which receives them into the memory of that host.
///
/// Each function is called on every worker, in the order below. pack() is called by each lane for its share; all else
/// is called on one thread, while all replicas are at rest.
class HostGradients {
 public:
  /// For these variables, in this order, on all workers. `group` outlives it.
  HostGradients(std::vector<std::shared_ptr<VariableState>> variables, const ReplicaGroup& group, Hosts hosts);

  /// `all` has the gradients of each variable, and stays until the step ends; `shares` and `lanes` say which blocks
  /// are this worker's. Where `whole`, other workers may read all blocks. Throws a ClusterError where there is no
  /// memory, and then on all workers.
  void begin_step(const std::vector<GradientsOnWorkers>& all, const BlockShares& shares, const LaneRange& lanes,
                  bool whole);
  /// Afterwards all workers have to meet.
  void pack(const GradientTable& gradients, int lane, int num_lanes);

  /// Null where there is one host. Otherwise the sums travel behind the factors, and have to before set_leaves().
  SumsBetweenHosts* sums_between_hosts() { return sums_between_hosts_ ? &*sums_between_hosts_ : nullptr; }
  /// Where there are several hosts. Throws what the World throws.
  void send_factors();

  /// Gives `gradients` what the update adds. It refers to memory that stays until the next begin_step().
  void set_leaves(GradientTable& gradients) const;

  /// How variable i travelled between hosts in the last step that has begun.
  Travelled travelled(std::size_t i) const;

 private:
  void lay_out(std::span<const char> summed, const BlockShares& shares, const LaneRange& lanes, bool whole);
  /// How many bytes the sums of this step take on the host that needs most, and the factors.
  int64_t bytes_of_step() const;
  int64_t bytes_of_factors(int64_t worker) const;
  /// Gets memory for the sums and factors of this step. Throws on all workers where one of them gets none.
  void make_room(bool is_new_layout);
  SumsBetweenHosts::Memory memory_between_hosts() const;
  /// The partial sums of a worker of this host, of the whole row.
  SumsInMemory sums_of(int64_t worker) const;
  /// Behind them: where the sums over all replicas begin, if there are several hosts.
  std::byte* sums() const { return sums_of(num_workers_).memory; }
  float* factors_of(int64_t worker) const;

  const std::vector<std::shared_ptr<VariableState>> variables_;
  const ReplicaGroup& group_;
  const Hosts hosts_;
  const int64_t worker_;
  const int64_t num_workers_;
  const int64_t host_;

  PartialSums partial_sums_;
  FactorExchange factors_;
  std::optional<SumsBetweenHosts> sums_between_hosts_;  // where there are several
  std::vector<char> factored_;                          // by variable, of the last step that has begun
  std::vector<int64_t> factor_elements_;                // by variable, of the same step: those that this worker packs
  std::vector<int64_t> factor_places_;  // by worker: its factors' first byte behind those of the first; then the end
  RowLayout row_;                       // of what travels as sums
  bool whole_ = false;                  // of the layout
  std::vector<RowPiece> pieces_;        // that this worker packs
  bool streams_ = false;                // sums go past the caches
  // By worker of this host: its sums, by subtree; then, where there are several hosts, the sums over all replicas; then
  // by worker of any host: its factors.
  std::shared_ptr<std::byte> memory_;
  int64_t room_ = 0;  // bytes that every host has for it
};

}  // namespace lockstep::internal::exchange
