#include "lockstep/exchange/sum_row.h"

#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/exchange/messages.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline exchange {

namespace {

std::byte* bytes_of(const at::Tensor& memory) { return host_bytes_to_write(memory).data(); }

}  // namespace

SumRow::SumRow(std::vector<std::shared_ptr<VariableState>> variables, const ReplicaGroup& group, WireFormat wire)
    : variables_(std::move(variables)),
      replicas_(group.num_replicas()),
      worker_(group.rounds().worker_index()),
      num_workers_(group.num_workers()),
      wire_(wire),
      partial_sums_(group),
      arrived_(static_cast<std::size_t>(num_workers_)) {}

RowNumbers SumRow::numbers_of(std::size_t i) const {
  const RowNumbers exact = row_numbers_of(*variables_[i]);
  return wire_ == WireFormat::kBFloat16 && exact == RowNumbers::kFloat ? RowNumbers::kRounded : exact;
}

void SumRow::lay_out(const std::vector<std::size_t>& order, std::size_t in_buckets) {
  layout_ = RowLayout();  // until there is memory
  buckets_.clear();
  value_places_.assign(variables_.size(), 0);
  int64_t value_bytes = 0;
  std::vector<RowVariable> in_row;
  for (const std::size_t i : order) {
    in_row.push_back({i, numbers_of(i), variables_[i]->numbers().numel()});
    if (!is_rounded(i)) continue;
    value_places_[i] = value_bytes;
    value_bytes += aligned(variables_[i]->bytes());
  }
  RowLayout layout(variables_.size(), in_row, RowLayout::Cut::kSumBlocks);
  const std::size_t end =
      in_buckets < order.size() ? layout.piece_at(layout.place(order[in_buckets])) : layout.pieces().size();
  std::vector<RowSection> buckets = layout.cut_into_sections(end, kBucketBytes, num_workers_);
  int64_t own_bytes = 0;
  for (std::size_t count = 0; count <= buckets.size(); ++count) {
    const RowSection rest = layout.behind(std::span(buckets).first(count), num_workers_);
    own_bytes = std::max(own_bytes, own(rest).before + own(rest).bytes);
  }
  grow(packed_, layout.bytes() * partial_sums_.count(worker_));
  grow(sums_, layout.bytes());
  if (value_bytes > 0) grow(values_, value_bytes);
  for (int64_t w = 0; w < num_workers_; ++w) {
    if (w != worker_) grow(arrived_[static_cast<std::size_t>(w)], own_bytes * partial_sums_.count(w));
  }
  layout_ = std::move(layout);
  buckets_ = std::move(buckets);
}

std::pair<std::size_t, std::size_t> SumRow::buckets_of(std::size_t i) const {
  const auto behind_bucket = [](const RowSection& one, int64_t place) { return one.back().end() <= place; };
  const auto first = std::lower_bound(buckets_.begin(), buckets_.end(), layout_.place(i), behind_bucket);
  auto last = first;
  while (last != buckets_.end() && last->front().begin < layout_.end(i)) ++last;
  return {static_cast<std::size_t>(first - buckets_.begin()), static_cast<std::size_t>(last - buckets_.begin())};
}

SumsInMemory SumRow::packed(const RowSlice& slice) const {
  return {bytes_of(packed_) + slice.begin * partial_sums_.count(worker_), slice.begin, slice.bytes};
}

SumsInMemory SumRow::arrived(const RowSlice& slice, int64_t worker) const {
  return {bytes_of(arrived(worker)) + slice.before * partial_sums_.count(worker), slice.begin, slice.bytes};
}

void SumRow::pack(const GradientTable& gradients, const RowSection& section, int lane, int num_lanes) {
  partial_sums_.restart(lane);
  for (const RowSlice& slice : section) {
    for (const RowPiece& piece : share_of(layout_.pieces(slice), lane, num_lanes))
      partial_sums_.pack(gradients, lane, piece, packed(slice));
  }
}

bool SumRow::has_one_sum_of_each() const {
  for (int64_t w = 0; w < num_workers_; ++w) {
    if (partial_sums_.count(w) != 1) return false;
  }
  return true;
}

template <class T, class Wire, class Visit>
void SumRow::for_each_sum(std::size_t i, std::span<const void* const> gradients, int lane, int num_lanes,
                          const Visit& visit) const {
  static const TreeSum<T> sum_of = tree_sum<T>();
  const auto replicas = static_cast<int64_t>(gradients.size());
  const int64_t elements = variables_[i]->numbers().numel();
  auto* const packed = reinterpret_cast<Wire*>(bytes_of(packed_) + layout_.place(i));
  c10::SmallVector<const T*, 16> inputs;
  for (const void* const gradient : gradients) inputs.push_back(static_cast<const T*>(gradient));
  const int64_t blocks = (elements + kSumBlock - 1) / kSumBlock;
  const int64_t end = blocks * (lane + 1) / num_lanes;
  for (int64_t block = blocks * lane / num_lanes; block < end; ++block) {
    const int64_t offset = block * kSumBlock;
    const int64_t count = std::min(kSumBlock, elements - offset);
    const T* const sum = sum_of(inputs.data(), replicas, offset, count, scratch_for<T>(replicas));
    if (!visit(sum, count, packed + offset)) return;
  }
}

void SumRow::pack(std::size_t i, std::span<const void* const> gradients) {
  with_types(numbers_of(i), [&]<class T, class Wire>(T, Wire) {
    for_each_sum<T, Wire>(i, gradients, 0, 1, [](const T* sum, int64_t count, Wire* packed) {
      encode(sum, count, packed);
      return true;
    });
  });
}

bool SumRow::has_packed(std::size_t i, std::span<const void* const> gradients, int lane, int num_lanes) const {
  bool is_same = true;
  with_types(numbers_of(i), [&]<class T, class Wire>(T, Wire) {
    for_each_sum<T, Wire>(i, gradients, lane, num_lanes, [&](const T* sum, int64_t count, const Wire* packed) {
      const void* again = sum;
      if constexpr (!std::is_same_v<T, Wire>) {
        Wire* const rounded = block_memory<Wire>(1);
        encode(sum, count, rounded);
        again = rounded;
      }
      is_same = std::memcmp(again, packed, static_cast<std::size_t>(count) * sizeof(Wire)) == 0;
      return is_same;
    });
  });
  return is_same;
}

void SumRow::add(const RowSection& section, int lane, int num_lanes) {
  const RowSlice& slice = own(section);
  c10::SmallVector<SumsOfSubtrees, 16> parts;
  for (int64_t w = 0; w < num_workers_; ++w)
    parts.push_back({partial_sums_.subtrees(w), w == worker_ ? packed(slice) : arrived(slice, w)});
  for (const RowPiece& piece : share_of(layout_.pieces(slice), lane, num_lanes))
    add_piece(piece, {parts.data(), parts.size()}, {0, replicas_}, bytes_of(sums_) + piece.place);
}

void SumRow::unpack(int lane, int num_lanes) {
  for (const RowPiece& piece : share_of(std::span(layout_.pieces()), lane, num_lanes)) {
    if (piece.numbers != RowNumbers::kRounded) continue;
    auto* const to = reinterpret_cast<float*>(bytes_of(values_) + value_places_[piece.variable]);
    from_bfloat16(reinterpret_cast<const Bfloat16*>(bytes_of(sums_) + piece.place), piece.count, to + piece.offset);
  }
}

const void* SumRow::sum(std::size_t i) const {
  return is_rounded(i) ? bytes_of(values_) + value_places_[i] : bytes_of(sums_) + layout_.place(i);
}

std::span<const std::byte> SumRow::packed(const RowSection& section, int64_t owner) const {
  return packed(section[static_cast<std::size_t>(owner)]).all(partial_sums_.subtrees(worker_).size());
}

std::span<std::byte> SumRow::arrived(const RowSection& section, int64_t worker) const {
  return arrived(own(section), worker).all(partial_sums_.subtrees(worker).size());
}

std::span<std::byte> SumRow::sums(const RowSection& section, int64_t owner) const {
  const RowSlice& slice = section[static_cast<std::size_t>(owner)];
  return {bytes_of(sums_) + slice.begin, static_cast<std::size_t>(slice.bytes)};
}

int64_t SumRow::bytes_sent(std::size_t i, std::size_t ahead) const {
  int64_t of_own = own(behind(ahead)).bytes_within(layout_.place(i), layout_.end(i));
  for (std::size_t b = 0; b < ahead; ++b) of_own += own(buckets_[b]).bytes_within(layout_.place(i), layout_.end(i));
  // Partial sums of what others own, and to each of them the sum of what this worker owns.
  return (layout_.bytes(i) - of_own) * partial_sums_.count(worker_) + of_own * (num_workers_ - 1);
}

}  // namespace lockstep::internal::exchange
