// The sums of gradients between hosts whose workers share memory: a hierarchical all-reduce.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/exchange/hosts.h"
#include "lockstep/exchange/partial_sums.h"

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
/// Each function is called on every worker, in the order below. combine() and add() are called by each lane for its
/// share; all else is called on one thread, while all replicas are at rest.
class SumsBetweenHosts {
 public:
  /// At most kSumBlock elements of one gradient.
  struct RowPiece {
    bool is_double;
    int64_t count;  // of elements
    int64_t place;  // of its first byte in the row
  };
  /// The memory of the sums, which all workers of this host map. Each pointer is to a whole row.
  struct Memory {
    std::vector<std::vector<const std::byte*>> partial_sums;  // by worker of this host, then by subtree of its replicas
    std::byte* sums = nullptr;
  };

  /// All three outlive it.
  SumsBetweenHosts(const Hosts& hosts, const PartialSums& partial_sums, const ReplicaGroup& group);

  /// For a row of `bytes` bytes that consists of these pieces, in order. The same on all workers.
  void lay_out(std::vector<RowPiece> pieces, int64_t bytes);
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
  /// The pieces [first, end) of the row.
  struct Slice {
    std::size_t first = 0;
    std::size_t end = 0;
    int64_t begin = 0;  // its first byte in the row
    int64_t bytes = 0;
  };
  /// A piece of the slice of a worker whose partner this one is.
  struct PieceToCombine {
    std::size_t piece;
    int64_t owner;
  };

  const Slice& slice(int64_t worker) const { return slices_[static_cast<std::size_t>(worker)]; }
  const std::vector<Subtree>& subtrees(int64_t host) const { return subtrees_[static_cast<std::size_t>(host)]; }
  std::byte* outgoing(int64_t owner, std::size_t subtree) const;
  std::byte* incoming(int64_t host, std::size_t subtree) const;
  std::span<std::byte> all_outgoing(int64_t owner) const;
  std::span<std::byte> all_incoming(int64_t host) const;
  std::span<std::byte> sums_of(int64_t owner) const;
  /// Puts this host's partial sums at `place` of the row to the first replicas of their subtrees, as far as these are
  /// among the replicas `within`, of which the first one has inputs[0].
  template <class T>
  void set_own_inputs(int64_t place, const Subtree& within, std::span<const T*> inputs) const;
  template <class T>
  void combine_piece(const PieceToCombine& one);
  template <class T>
  void add_piece(const RowPiece& piece);

  const Hosts& hosts_;
  const PartialSums& partial_sums_;
  const ReplicaGroup& group_;
  const int64_t worker_;
  const int64_t host_;
  std::vector<std::vector<Subtree>> subtrees_;  // by host
  std::vector<int64_t> owners_;                 // workers of other hosts whose partner this one is
  std::vector<int64_t> partners_;               // by host: this worker's partner there; -1 on its own

  std::vector<RowPiece> pieces_;
  std::vector<Slice> slices_;  // by worker
  std::vector<PieceToCombine> to_combine_;
  std::vector<int64_t> outgoing_places_;  // by owner: its first byte in outgoing_
  std::vector<int64_t> incoming_places_;  // by host: its first byte in incoming_
  int64_t outgoing_bytes_ = 0;
  int64_t incoming_bytes_ = 0;
  at::Tensor outgoing_;  // by owner whose partner this worker is, then by subtree of this host: a slice
  at::Tensor incoming_;  // by other host, then by subtree of that host: the own slice
  Memory memory_;
};

}  // namespace lockstep::internal::exchange
