#include "lockstep/exchange/sum_row.h"

#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "lockstep/core/torch_compat.h"
#include "lockstep/gradient/gradient_table.h"
#include "lockstep/reduce/loops/bfloat16.h"
#include "lockstep/reduce/loops/tree_sum.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline exchange {

namespace {

/// Each variable begins at a multiple of it, so that no line of a cache belongs to two of them.
constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::byte* bytes_of(const at::Tensor& memory) {
  return const_cast<std::byte*>(static_cast<const std::byte*>(address_of(memory)));
}

/// Memory of at least so many bytes, cleared, because the gaps between variables travel too. New memory where there is
/// not enough: what was put into the old one may still be on its way.
void grow(at::Tensor& memory, int64_t bytes) {
  if (!memory.defined() || memory.numel() < bytes) memory = at::zeros({bytes}, at::kByte);
}

// Between a variable's numbers and those of the row. Where both are alike, encode() copies, and decode() gives the
// row's own memory; else it fills `scratch`, of kSumBlock elements.

template <class T>
void encode(const T* from, int64_t count, T* to) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
}
void encode(const float* from, int64_t count, Bfloat16* to) { to_bfloat16(from, count, to); }

template <class T>
const T* decode(const T* from, int64_t /*count*/, T* /*scratch*/) {
  return from;
}
const float* decode(const Bfloat16* from, int64_t count, float* scratch) {
  from_bfloat16(from, count, scratch);
  return scratch;
}

/// Memory of the calling thread for so many blocks.
template <class T>
T* blocks(std::size_t count) {
  thread_local std::vector<T> memory;  // grown once
  const std::size_t size = count * static_cast<std::size_t>(kSumBlock);
  if (memory.size() < size) memory.resize(size);
  return memory.data();
}

/// A lane's part of the pieces [first, end).
template <class Visit>
void for_each_piece(std::size_t first, std::size_t end, int lane, int num_lanes, const Visit& visit) {
  const auto count = static_cast<int64_t>(end - first);
  const auto border = [&](int64_t l) { return first + static_cast<std::size_t>(count * l / num_lanes); };
  for (std::size_t p = border(lane); p < border(lane + 1); ++p) visit(p);
}

}  // namespace

SumRow::SumRow(std::vector<std::shared_ptr<VariableState>> variables, const ReplicaGroup& group, WireFormat wire)
    : variables_(std::move(variables)),
      replicas_(group.num_replicas()),
      worker_(group.rounds().worker_index()),
      num_workers_(group.num_workers()),
      wire_(wire),
      partial_sums_(group),
      arrived_(static_cast<std::size_t>(num_workers_)) {}

bool SumRow::is_rounded(std::size_t i) const {
  return wire_ == WireFormat::kBFloat16 && variables_[i]->number_type() == at::kFloat;
}

int64_t SumRow::bytes(std::size_t i) const {
  const int64_t own = variables_[i]->bytes();
  return is_rounded(i) ? own / static_cast<int64_t>(sizeof(float) / sizeof(Bfloat16)) : own;
}

template <class Work>
void SumRow::with_types(std::size_t i, const Work& work) const {
  if (is_rounded(i)) return work(float{}, Bfloat16{});
  if (variables_[i]->number_type() == at::kDouble) return work(double{}, double{});
  work(float{}, float{});
}

void SumRow::lay_out(const std::vector<std::size_t>& order, std::size_t in_buckets) {
  pieces_.clear();
  buckets_.clear();
  places_.assign(variables_.size(), 0);
  value_places_.assign(variables_.size(), 0);
  bytes_ = 0;
  int64_t value_bytes = 0;
  std::vector<Piece> pieces;
  std::size_t in_buckets_pieces = 0;
  for (std::size_t k = 0; k < order.size(); ++k) {
    const std::size_t i = order[k];
    places_[i] = bytes_;
    const int64_t elements = variables_[i]->numbers().numel();
    const int64_t size = elements == 0 ? 0 : bytes(i) / elements;
    for (int64_t offset = 0; offset < elements; offset += kSumBlock) {
      const int64_t count = std::min(kSumBlock, elements - offset);
      pieces.push_back({i, offset, count, bytes_ + offset * size});
    }
    bytes_ += aligned(bytes(i));
    if (is_rounded(i)) {
      value_places_[i] = value_bytes;
      value_bytes += aligned(variables_[i]->bytes());
    }
    if (k < in_buckets) in_buckets_pieces = pieces.size();
  }
  grow(packed_, bytes_ * static_cast<int64_t>(subtrees(worker_).size()));
  grow(sums_, bytes_);
  if (value_bytes > 0) grow(values_, value_bytes);
  pieces_ = std::move(pieces);
  try {
    cut_into_buckets(in_buckets_pieces);
  } catch (...) {
    pieces_.clear();
    buckets_.clear();
    throw;
  }
}

void SumRow::cut_into_buckets(std::size_t pieces) {
  std::vector<int64_t> before(static_cast<std::size_t>(num_workers_));
  for (std::size_t first = 0; first < pieces;) {
    std::size_t end = first;
    while (end < pieces && pieces_[end].place < pieces_[first].place + kBucketBytes) ++end;
    buckets_.push_back(cut(first, end, before));
    for (std::size_t w = 0; w < before.size(); ++w) before[w] += buckets_.back()[w].bytes;
    first = end;
  }
  int64_t own_bytes = 0;
  for (std::size_t count = 0; count <= buckets_.size(); ++count) {
    const Section rest = behind(count);
    own_bytes = std::max(own_bytes, own(rest).before + own(rest).bytes);
  }
  for (int64_t w = 0; w < num_workers_; ++w) {
    if (w == worker_) continue;
    grow(arrived_[static_cast<std::size_t>(w)], own_bytes * static_cast<int64_t>(subtrees(w).size()));
  }
}

SumRow::Section SumRow::cut(std::size_t first, std::size_t end, std::span<const int64_t> before) const {
  const int64_t begin = place_of_piece(first);
  const int64_t bytes = place_of_piece(end) - begin;
  Section slices(static_cast<std::size_t>(num_workers_));
  // A slice begins with the first piece that does not begin before its share of the section.
  std::size_t piece = first;
  for (int64_t w = 0; w < num_workers_; ++w) {
    Slice& one = slices[static_cast<std::size_t>(w)];
    one.first_piece = piece;
    one.begin = place_of_piece(piece);
    const int64_t share = begin + bytes / num_workers_ * (w + 1);
    const auto behind_share = std::lower_bound(pieces_.begin() + static_cast<std::ptrdiff_t>(piece),
                                               pieces_.begin() + static_cast<std::ptrdiff_t>(end), share,
                                               [](const Piece& left, int64_t right) { return left.place < right; });
    piece = w + 1 == num_workers_ ? end : static_cast<std::size_t>(behind_share - pieces_.begin());
    one.end_piece = piece;
    one.bytes = place_of_piece(piece) - one.begin;
    one.before = before[static_cast<std::size_t>(w)];
  }
  return slices;
}

SumRow::Section SumRow::behind(std::size_t count) const {
  std::vector<int64_t> before(static_cast<std::size_t>(num_workers_));
  if (count == 0) return cut(0, pieces_.size(), before);
  const Section& last = buckets_[count - 1];
  for (std::size_t w = 0; w < before.size(); ++w) before[w] = last[w].before + last[w].bytes;
  return cut(last.back().end_piece, pieces_.size(), before);
}

std::pair<std::size_t, std::size_t> SumRow::buckets_of(std::size_t i) const {
  const int64_t begin = places_[i];
  const int64_t end = begin + bytes(i);
  const auto behind_bucket = [](const Section& one, int64_t place) {
    return one.back().begin + one.back().bytes <= place;
  };
  const auto first = std::lower_bound(buckets_.begin(), buckets_.end(), begin, behind_bucket);
  auto last = first;
  while (last != buckets_.end() && last->front().begin < end) ++last;
  return {static_cast<std::size_t>(first - buckets_.begin()), static_cast<std::size_t>(last - buckets_.begin())};
}

std::byte* SumRow::partial_sum(const Slice& slice, std::size_t subtree) const {
  const auto count = static_cast<int64_t>(subtrees(worker_).size());
  return bytes_of(packed_) + slice.begin * count + slice.bytes * static_cast<int64_t>(subtree);
}

void SumRow::pack(const GradientTable& gradients, const Section& section, int lane, int num_lanes) {
  partial_sums_.restart(lane);
  for (const Slice& slice : section) {
    for_each_piece(slice.first_piece, slice.end_piece, lane, num_lanes, [&](std::size_t p) {
      const Piece& piece = pieces_[p];
      with_types(piece.variable,
                 [&]<class T, class Wire>(T, Wire) { pack_piece<T, Wire>(gradients, lane, piece, slice); });
    });
  }
}

template <class T, class Wire>
void SumRow::pack_piece(const GradientTable& gradients, int lane, const Piece& piece, const Slice& slice) {
  const std::vector<Subtree>& own = subtrees(worker_);
  for (std::size_t s = 0; s < own.size(); ++s) {
    auto* const to = reinterpret_cast<Wire*>(partial_sum(slice, s) + (piece.place - slice.begin));
    T* exact = nullptr;
    if constexpr (std::is_same_v<T, Wire>) {
      exact = to;
    } else {
      exact = blocks<T>(1);
    }
    partial_sums_.write(gradients, lane, piece.variable, piece.offset, piece.count, own[s], exact, std::memcpy);
    if constexpr (!std::is_same_v<T, Wire>) encode(exact, piece.count, to);
  }
}

bool SumRow::has_one_sum_of_each() const {
  for (int64_t w = 0; w < num_workers_; ++w) {
    if (subtrees(w).size() != 1) return false;
  }
  return true;
}

template <class T, class Wire, class Visit>
void SumRow::for_each_sum(std::size_t i, std::span<const void* const> gradients, int lane, int num_lanes,
                          const Visit& visit) const {
  static const TreeSum<T> sum_of = tree_sum<T>();
  const auto replicas = static_cast<int64_t>(gradients.size());
  const int64_t elements = variables_[i]->numbers().numel();
  auto* const packed = reinterpret_cast<Wire*>(bytes_of(packed_) + places_[i]);
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
  with_types(i, [&]<class T, class Wire>(T, Wire) {
    for_each_sum<T, Wire>(i, gradients, 0, 1, [](const T* sum, int64_t count, Wire* packed) {
      encode(sum, count, packed);
      return true;
    });
  });
}

bool SumRow::has_packed(std::size_t i, std::span<const void* const> gradients, int lane, int num_lanes) const {
  bool is_same = true;
  with_types(i, [&]<class T, class Wire>(T, Wire) {
    for_each_sum<T, Wire>(i, gradients, lane, num_lanes, [&](const T* sum, int64_t count, const Wire* packed) {
      const void* again = sum;
      if constexpr (!std::is_same_v<T, Wire>) {
        Wire* const rounded = blocks<Wire>(1);
        encode(sum, count, rounded);
        again = rounded;
      }
      is_same = std::memcmp(again, packed, static_cast<std::size_t>(count) * sizeof(Wire)) == 0;
      return is_same;
    });
  });
  return is_same;
}

void SumRow::add(const Section& section, int lane, int num_lanes) {
  const Slice& slice = own(section);
  for_each_piece(slice.first_piece, slice.end_piece, lane, num_lanes, [&](std::size_t p) {
    const Piece& piece = pieces_[p];
    with_types(piece.variable, [&]<class T, class Wire>(T, Wire) { add_piece<T, Wire>(piece, slice); });
  });
}

template <class T, class Wire>
void SumRow::add_piece(const Piece& piece, const Slice& slice) {
  static const TreeSum<T> sum_of = tree_sum<T>();
  std::size_t partial_sums = 0;
  for (int64_t w = 0; w < num_workers_; ++w) partial_sums += subtrees(w).size();
  T* decoded = std::is_same_v<T, Wire> ? nullptr : blocks<T>(partial_sums);
  // Each partial sum stands as the value of its subtree's first replica.
  c10::SmallVector<const T*, 16> inputs(static_cast<std::size_t>(replicas_), nullptr);
  for (int64_t w = 0; w < num_workers_; ++w) {
    const auto count = static_cast<int64_t>(subtrees(w).size());
    for (int64_t s = 0; s < count; ++s) {
      const std::byte* const from = w == worker_ ? partial_sum(slice, static_cast<std::size_t>(s))
                                                 : bytes_of(arrived(w)) + slice.before * count + slice.bytes * s;
      inputs[static_cast<std::size_t>(subtrees(w)[static_cast<std::size_t>(s)].first)] =
          decode(reinterpret_cast<const Wire*>(from + (piece.place - slice.begin)), piece.count, decoded);
      if (decoded) decoded += kSumBlock;
    }
  }
  const T* const sum = sum_of(inputs.data(), replicas_, 0, piece.count, scratch_for<T>(replicas_));
  encode(sum, piece.count, reinterpret_cast<Wire*>(bytes_of(sums_) + piece.place));
}

void SumRow::unpack(int lane, int num_lanes) {
  for_each_piece(0, pieces_.size(), lane, num_lanes, [&](std::size_t p) {
    const Piece& piece = pieces_[p];
    if (!is_rounded(piece.variable)) return;
    auto* const to = reinterpret_cast<float*>(bytes_of(values_) + value_places_[piece.variable]);
    from_bfloat16(reinterpret_cast<const Bfloat16*>(bytes_of(sums_) + piece.place), piece.count, to + piece.offset);
  });
}

const void* SumRow::sum(std::size_t i) const {
  return is_rounded(i) ? bytes_of(values_) + value_places_[i] : bytes_of(sums_) + places_[i];
}

std::span<const std::byte> SumRow::packed(const Section& section, int64_t owner) const {
  const Slice& slice = section[static_cast<std::size_t>(owner)];
  return {partial_sum(slice, 0), static_cast<std::size_t>(slice.bytes) * subtrees(worker_).size()};
}

std::span<std::byte> SumRow::arrived(const Section& section, int64_t worker) const {
  const Slice& slice = own(section);
  const auto count = static_cast<int64_t>(subtrees(worker).size());
  return {bytes_of(arrived(worker)) + slice.before * count, static_cast<std::size_t>(slice.bytes * count)};
}

std::span<std::byte> SumRow::sums(const Section& section, int64_t owner) const {
  const Slice& slice = section[static_cast<std::size_t>(owner)];
  return {bytes_of(sums_) + slice.begin, static_cast<std::size_t>(slice.bytes)};
}

}  // namespace lockstep::internal::exchange
