// Gradients that travel between workers as sums: one row of them, and the memory of what travels.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/core/tuning/wire_format.h"
#include "lockstep/exchange/partial_sums.h"
#include "lockstep/exchange/row.h"

namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica

namespace lockstep::internal::inline exchange {

/// The row (row.h) is cut into sections, and of each section every worker owns a slice. A worker packs its partial
/// sums, one for each maximal subtree of its block of replicas; owners get those of their slices and add them up in
/// tree order (reduce-scatter), and send the sums to all (all-gather). Every element is added up once, and no bit
/// depends on how the row is cut.
///
/// A section is sent, added and sent back as a whole; sections do not depend on each other.
///
/// With WireFormat::kBFloat16 the row has float32 numbers as bfloat16: partial sums and sums are rounded, this worker's
/// own too, so that all workers have the same.
class SumRow {
 public:
  /// Bytes of a section that is a bucket, about.
  static constexpr int64_t kBucketBytes = int64_t{1} << 20;

  SumRow(std::vector<std::shared_ptr<VariableState>> variables, const ReplicaGroup& group, WireFormat wire);

  /// Lays the variables of `order`, by index, into the row in this order, and cuts the first `in_buckets` of them into
  /// buckets. Where memory is short the row is empty afterwards.
  void lay_out(const std::vector<std::size_t>& order, std::size_t in_buckets);

  const RowLayout& layout() const { return layout_; }
  const std::vector<RowSection>& buckets() const { return buckets_; }
  /// All that lies behind the first `count` buckets, as one section.
  RowSection behind(std::size_t count) const { return layout_.behind(std::span(buckets_).first(count), num_workers_); }
  /// Whether a row has variable i as bfloat16.
  bool is_rounded(std::size_t i) const { return numbers_of(i) == RowNumbers::kRounded; }
  /// The buckets that have elements of variable i: [first, second).
  std::pair<std::size_t, std::size_t> buckets_of(std::size_t i) const;

  /// Writes this worker's partial sums of a lane's share of a section.
  void pack(const GradientTable& gradients, const RowSection& section, int lane, int num_lanes);
  /// Whether every worker has one partial sum.
  bool has_one_sum_of_each() const;
  /// Packs the one partial sum of variable i, from the gradients of all local replicas, which are dense.
  void pack(std::size_t i, std::span<const void* const> gradients);
  /// Whether pack() would pack the same again, as far as it is in a lane's share of the variable.
  bool has_packed(std::size_t i, std::span<const void* const> gradients, int lane, int num_lanes) const;
  /// Adds up this worker's slice of a section, a lane's share of it, from what it has packed and what has arrived.
  void add(const RowSection& section, int lane, int num_lanes);
  /// Call when all sums have arrived. Makes a lane's share of the rounded ones float32, for sum().
  void unpack(int lane, int num_lanes);
  /// The sum of variable i, in its own dtype.
  const void* sum(std::size_t i) const;

  /// What this worker has packed for the owner of a slice.
  std::span<const std::byte> packed(const RowSection& section, int64_t owner) const;
  /// Where another worker's partial sums of this worker's slice arrive.
  std::span<std::byte> arrived(const RowSection& section, int64_t worker) const;
  /// The sums of an owner's slice.
  std::span<std::byte> sums(const RowSection& section, int64_t owner) const;

  /// All memory of partial sums that a worker sends to this one, of sums, and of what this worker packs.
  const at::Tensor& arrived(int64_t worker) const { return arrived_[static_cast<std::size_t>(worker)]; }
  const at::Tensor& sums() const { return sums_; }
  const at::Tensor& packed() const { return packed_; }

  /// How many bytes of variable i, which the row has, this worker sends where the first `ahead` buckets travel by
  /// themselves, and the rest as one section.
  int64_t bytes_sent(std::size_t i, std::size_t ahead) const;

 private:
  RowNumbers numbers_of(std::size_t i) const;
  const RowSlice& own(const RowSection& section) const { return section[static_cast<std::size_t>(worker_)]; }
  /// Where this worker's partial sums of a slice lie, and where those that another worker sends of an own slice do.
  SumsInMemory packed(const RowSlice& slice) const;
  SumsInMemory arrived(const RowSlice& slice, int64_t worker) const;
  /// Calls visit(sum, count, packed) for each block of a lane's share of variable i, as long as that is true: the sum
  /// over the gradients, and where the row has it.
  template <class T, class Wire, class Visit>
  void for_each_sum(std::size_t i, std::span<const void* const> gradients, int lane, int num_lanes,
                    const Visit& visit) const;

  const std::vector<std::shared_ptr<VariableState>> variables_;
  const int64_t replicas_;
  const int64_t worker_;
  const int64_t num_workers_;
  const WireFormat wire_;

  PartialSums partial_sums_;
  RowLayout layout_;
  std::vector<RowSection> buckets_;    // of the beginning of the row
  at::Tensor packed_;                  // this worker's partial sums: by section, slice, then subtree
  std::vector<at::Tensor> arrived_;    // by worker: its partial sums of the own slices, by section, then subtree
  at::Tensor sums_;                    // the row
  std::vector<int64_t> value_places_;  // by variable that the row has as bfloat16: its first byte in values_
  at::Tensor values_;                  // their sums as float32; undefined where there is none
};

}  // namespace lockstep::internal::exchange
