// Gradients that travel between workers as sums: where each lies in one row, who adds up which part of it, and the
// memory of what travels.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/core/tuning/wire_format.h"
#include "lockstep/exchange/partial_sums.h"
#include "lockstep/reduce/addition_order.h"

namespace lockstep::internal::inline gradient {
class GradientTable;
}  // namespace lockstep::internal::gradient
namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica
namespace lockstep::internal::inline variable {
class VariableState;
}  // namespace lockstep::internal::variable

namespace lockstep::internal::inline exchange {

/// The gradients lie one after another, as elements of one row. The row is cut into sections, and of each section every
/// worker owns a slice. A worker packs its partial sums, one for each maximal subtree of its block of replicas; owners
/// get those of their slices and add them up in tree order (reduce-scatter), and send the sums to all (all-gather).
/// Every element is added up once, and no bit depends on how the row is cut.
///
/// A section is sent, added and sent back as a whole; sections do not depend on each other.
///
/// With WireFormat::kBFloat16 the row has float32 numbers as bfloat16: partial sums and sums are rounded, this worker's
/// own too, so that all workers have the same.
class SumRow {
 public:
  /// Bytes of a section that is a bucket, about.
  static constexpr int64_t kBucketBytes = int64_t{1} << 20;

  /// A worker's part of a section, in pieces and in bytes of the row.
  struct Slice {
    std::size_t first_piece = 0;
    std::size_t end_piece = 0;
    int64_t begin = 0;
    int64_t bytes = 0;
    int64_t before = 0;  // bytes of the same worker's slices of earlier sections
  };
  /// By worker.
  using Section = std::vector<Slice>;

  SumRow(std::vector<std::shared_ptr<VariableState>> variables, const ReplicaGroup& group, WireFormat wire);

  /// Lays the variables of `order`, by index, into the row in this order, and cuts the first `in_buckets` of them into
  /// buckets. Where memory is short the row is empty afterwards.
  void lay_out(const std::vector<std::size_t>& order, std::size_t in_buckets);

  bool is_empty() const { return pieces_.empty(); }
  const std::vector<Section>& buckets() const { return buckets_; }
  /// All that lies behind the first `count` buckets, as one section.
  Section behind(std::size_t count) const;
  /// The first byte of variable i within the row, and how many it has there.
  int64_t place(std::size_t i) const { return places_[i]; }
  int64_t bytes(std::size_t i) const;
  /// Whether the row has variable i as bfloat16.
  bool is_rounded(std::size_t i) const;
  /// The buckets that have elements of variable i: [first, second).
  std::pair<std::size_t, std::size_t> buckets_of(std::size_t i) const;

  /// Writes this worker's partial sums of a lane's share of a section.
  void pack(const GradientTable& gradients, const Section& section, int lane, int num_lanes);
  /// Whether every worker has one partial sum.
  bool has_one_sum_of_each() const;
  /// Packs the one partial sum of variable i, from the gradients of all local replicas, which are dense.
  void pack(std::size_t i, std::span<const void* const> gradients);
  /// Whether pack() would pack the same again, as far as it is in a lane's share of the variable.
  bool has_packed(std::size_t i, std::span<const void* const> gradients, int lane, int num_lanes) const;
  /// Adds up this worker's slice of a section, a lane's share of it, from what it has packed and what has arrived.
  void add(const Section& section, int lane, int num_lanes);
  /// Call when all sums have arrived. Makes a lane's share of the rounded ones float32, for sum().
  void unpack(int lane, int num_lanes);
  /// The sum of variable i, in its own dtype.
  const void* sum(std::size_t i) const;

  /// What this worker has packed for the owner of a slice.
  std::span<const std::byte> packed(const Section& section, int64_t owner) const;
  /// Where another worker's partial sums of this worker's slice arrive.
  std::span<std::byte> arrived(const Section& section, int64_t worker) const;
  /// The sums of an owner's slice.
  std::span<std::byte> sums(const Section& section, int64_t owner) const;

  /// All memory of partial sums that a worker sends to this one, of sums, and of what this worker packs.
  const at::Tensor& arrived(int64_t worker) const { return arrived_[static_cast<std::size_t>(worker)]; }
  const at::Tensor& sums() const { return sums_; }
  const at::Tensor& packed() const { return packed_; }

  const std::vector<Subtree>& subtrees(int64_t worker) const { return partial_sums_.subtrees(worker); }

 private:
  /// At most kSumBlock elements of one variable.
  struct Piece {
    std::size_t variable;
    int64_t offset;  // of its first element within the variable
    int64_t count;
    int64_t place;  // of its first byte within the row
  };

  /// The first `pieces` pieces, and gets memory for what arrives.
  void cut_into_buckets(std::size_t pieces);
  const Slice& own(const Section& section) const { return section[static_cast<std::size_t>(worker_)]; }
  /// Pieces [first, end), behind `before` bytes of each worker.
  Section cut(std::size_t first, std::size_t end, std::span<const int64_t> before) const;
  int64_t place_of_piece(std::size_t piece) const { return piece < pieces_.size() ? pieces_[piece].place : bytes_; }
  /// Where this worker's partial sum of a subtree for a slice begins.
  std::byte* partial_sum(const Slice& slice, std::size_t subtree) const;
  /// Calls work(T{}, Wire{}) with the dtype of variable i and that of the row.
  template <class Work>
  void with_types(std::size_t i, const Work& work) const;
  /// Calls visit(sum, count, packed) for each block of a lane's share of variable i, as long as that is true: the sum
  /// over the gradients, and where the row has it.
  template <class T, class Wire, class Visit>
  void for_each_sum(std::size_t i, std::span<const void* const> gradients, int lane, int num_lanes,
                    const Visit& visit) const;
  template <class T, class Wire>
  void pack_piece(const GradientTable& gradients, int lane, const Piece& piece, const Slice& slice);
  template <class T, class Wire>
  void add_piece(const Piece& piece, const Slice& slice);

  const std::vector<std::shared_ptr<VariableState>> variables_;
  const int64_t replicas_;
  const int64_t worker_;
  const int64_t num_workers_;
  const WireFormat wire_;

  PartialSums partial_sums_;
  std::vector<Piece> pieces_;          // in the order of the row
  std::vector<int64_t> places_;        // by variable: its first byte within the row
  int64_t bytes_ = 0;                  // of the row
  std::vector<Section> buckets_;       // of the beginning of the row
  at::Tensor packed_;                  // this worker's partial sums: by section, slice, then subtree
  std::vector<at::Tensor> arrived_;    // by worker: its partial sums of the own slices, by section, then subtree
  at::Tensor sums_;                    // the row
  std::vector<int64_t> value_places_;  // by variable that the row has as bfloat16: its first byte in values_
  at::Tensor values_;                  // their sums as float32; undefined where there is none
};

}  // namespace lockstep::internal::exchange
