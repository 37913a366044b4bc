// From the gradients of this worker's replicas to what an update that all workers of a host share adds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/optim/factor_exchange.h"
#include "lockstep/optim/gradients_on_workers.h"
#include "lockstep/optim/partial_sums.h"

namespace lockstep::internal {

class FusedUpdate;
class GradientTable;
class ReplicaGroup;
class VariableState;

/// Nothing travels: what other workers need lies in memory that all map. That is each worker's partial sums, one for
/// each maximal subtree of its block of replicas, of the blocks that other workers update; or, where every replica
/// keeps a gradient as factors, the factors. So each gradient is added up, or made from its factors, once for each
/// host.
///
/// Each function is called on every worker, in the order below. pack() is called by each lane for its share; all else
/// is called on one thread, while all replicas are at rest.
class HostGradients {
 public:
  /// For these variables, in this order, on all workers. `group` outlives it.
  HostGradients(std::vector<std::shared_ptr<VariableState>> variables, const ReplicaGroup& group);

  /// `all` has the gradients of each variable, and stays until the step ends; `update` says which blocks are this
  /// worker's. Where `whole`, other workers may read all blocks. Throws a ClusterError where there is no memory, and
  /// then on all workers.
  void begin_step(const std::vector<GradientsOnWorkers>& all, const FusedUpdate& update, bool whole);
  /// Afterwards all workers have to meet before the leaves are read.
  void pack(const GradientTable& gradients, int lane, int num_lanes);
  /// Gives `gradients` what the update adds. It refers to memory that stays until the next begin_step().
  void set_leaves(GradientTable& gradients) const;

 private:
  /// A block of one variable.
  struct Piece {
    std::size_t variable;
    int64_t offset;  // of its first element within the variable
    int64_t count;
  };

  void lay_out(std::vector<char> summed, const FusedUpdate& update, bool whole);
  /// Gets memory for the sums and factors of this step. Throws on all workers where one of them gets none.
  void make_room();
  /// Where a worker's sum of a subtree begins.
  std::byte* sums_of(int64_t worker, std::size_t subtree) const;
  float* factors_of(int64_t worker) const;
  template <class T>
  void pack_piece(const GradientTable& gradients, int lane, const Piece& piece);

  const std::vector<std::shared_ptr<VariableState>> variables_;
  const ReplicaGroup& group_;
  const int64_t worker_;
  const int64_t num_workers_;

  PartialSums partial_sums_;
  FactorExchange factors_;
  std::vector<char> summed_;           // by variable, of the layout
  bool whole_ = false;                 // of the layout
  std::vector<int64_t> places_;        // by variable: its first byte within a sum
  int64_t sum_bytes_ = 0;              // of one sum of all variables
  std::vector<Piece> pieces_;          // that this worker packs
  bool streams_ = false;               // sums go past the caches
  std::shared_ptr<std::byte> memory_;  // by worker: its sums, by subtree; then by worker: its factors
  int64_t room_ = 0;                   // bytes of memory_
};

}  // namespace lockstep::internal
