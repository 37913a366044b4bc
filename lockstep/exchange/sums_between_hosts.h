// The sums of gradients between hosts whose workers share memory: a hierarchical all-reduce.
#pragma once

#include <ATen/core/TensorBody.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/exchange/hosts.h"
#include "lockstep/exchange/partial_sums.h"
#include "lockstep/exchange/row.h"

namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica

namespace lockstep::internal::inline exchange {

/// A reduce inside each host, and a reduce-scatter and an all-gather between hosts. So one partial sum for each host
/// travels, and not one for each worker.
///
/// The gradients lie one after another in a row of bytes, of which each worker of the run owns a slice. On every host
/// each worker has put its partial sums of the whole row into the memory of the host. For the slice of a worker of
/// another host, that worker's partner here (hosts.h) adds up the partial sums of all workers of this host, as far as
/// they are in one subtree, and sends the result to the owner. The owner adds up its slice over all hosts. It sends the
/// sum to its partners, who receive it into the memory of their hosts.
///
/// Where each host's block of replicas is one subtree, all H hosts together send 2(H - 1) times the bytes of the row,
/// however many workers they have. The bits are those of one worker.
///
/// Each function is called on every worker. In a step the calls come in this order: send_to_other_hosts() where factors
/// travel, combine(), send_partial_sums(), add(), send_sums(). combine() and add() are called by each lane for its
/// share; all else is called on one thread, while all replicas are at rest.
class SumsBetweenHosts {
 public:
  /// The memory of the sums, which all workers of this host map. Each sum is of the whole row.
  struct Memory {
    std::vector<SumsOfSubtrees> partial_sums;  // by worker of this host
    std::byte* sums = nullptr;
  };

  /// All three outlive it.
  SumsBetweenHosts(const Hosts& hosts, const PartialSums& partial_sums, const ReplicaGroup& group);

  /// The row is the same on all workers.
  void lay_out(const RowLayout& row);
  /// Gets memory for what this worker sends and gets.
  void make_room();
  /// What the following steps use, until it is called again.
  void set_memory(Memory memory) { memory_ = std::move(memory); }

  /// All workers of the host have put their partial sums into the memory before.
  void combine(int lane, int num_lanes);
  /// Throws what the World throws.
  void send_partial_sums();
  void add(int lane, int num_lanes);
  /// Afterwards the memory of every host has the sums. Throws what the World throws.
  void send_sums();

  /// How many bytes of [begin, end) of the row this worker sends in a step.
  int64_t bytes_sent(int64_t begin, int64_t end) const;

  /// Sends `mine` to this worker's partner on every other host, and fills `place_of(w)` with what each worker w sends
  /// whose partner this one is. Throws what the World throws.
  using PlaceOf = FunctionRef<std::span<std::byte>(int64_t)>;
  void send_to_other_hosts(std::span<std::byte> mine, PlaceOf place_of) const;

 private:
  /// A piece of the slice of a worker whose partner this one is.
  struct PieceToCombine {
    RowPiece piece;
    int64_t owner;
  };

  bool is_empty() const { return slices_.back().end_piece == 0; }
  const RowSlice& slice(int64_t worker) const { return slices_[static_cast<std::size_t>(worker)]; }
  const std::vector<Subtree>& subtrees(int64_t host) const { return subtrees_[static_cast<std::size_t>(host)]; }
  bool is_owner(int64_t worker) const { return std::ranges::find(owners_, worker) != owners_.end(); }
  bool is_partner(int64_t worker) const { return std::ranges::find(partners_, worker) != partners_.end(); }
  /// This host's sums for an owner's slice, and those of another host for the own slice, by subtree.
  SumsInMemory outgoing(int64_t owner) const;
  SumsInMemory incoming(int64_t host) const;
  std::span<std::byte> sums_of(int64_t owner) const;

  const Hosts& hosts_;
  const PartialSums& partial_sums_;
  const ReplicaGroup& group_;
  const int64_t worker_;
  const int64_t host_;
  std::vector<std::vector<Subtree>> subtrees_;  // by host
  std::vector<int64_t> owners_;                 // workers of other hosts whose partner this one is
  std::vector<int64_t> partners_;               // of this worker on the other hosts

  RowSection slices_;  // by worker
  std::vector<PieceToCombine> to_combine_;
  std::vector<RowPiece> to_add_;          // of the own slice
  std::vector<int64_t> outgoing_places_;  // by owner: its first byte in outgoing_
  std::vector<int64_t> incoming_places_;  // by host: its first byte in incoming_
  int64_t outgoing_bytes_ = 0;
  int64_t incoming_bytes_ = 0;
  at::Tensor outgoing_;  // by owner whose partner this worker is, then by subtree of this host: a slice
  at::Tensor incoming_;  // by other host, then by subtree of that host: the own slice
  Memory memory_;
};

}  // namespace lockstep::internal::exchange
