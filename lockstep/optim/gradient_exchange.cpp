#include "lockstep/optim/gradient_exchange.h"

#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "lockstep/core/blocks.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/optim/gradient_table.h"
#include "lockstep/reduce/tree_sum.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal {

namespace {

/// Each variable begins at a multiple of it, so that no line of a cache belongs to two of them.
constexpr int64_t kAlignment = 64;

std::byte* bytes_of(const at::Tensor& memory) {
  return const_cast<std::byte*>(static_cast<const std::byte*>(address_of(memory)));
}

/// Grows `memory` to `bytes` bytes. It is cleared, because the gaps between variables travel too.
void grow(at::Tensor& memory, int64_t bytes) {
  if (!memory.defined() || memory.numel() < bytes) memory = at::zeros({bytes}, at::kByte);
}

/// A lane's part of the pieces [first, end).
template <class Visit>
void for_each_piece(std::size_t first, std::size_t end, int lane, int num_lanes, const Visit& visit) {
  const auto count = static_cast<int64_t>(end - first);
  const auto border = [&](int64_t l) { return first + static_cast<std::size_t>(count * l / num_lanes); };
  for (std::size_t p = border(lane); p < border(lane + 1); ++p) visit(p);
}

}  // namespace

GradientExchange::GradientExchange(std::vector<std::shared_ptr<VariableState>> variables, const ReplicaGroup& group,
                                   UpdateForm form)
    : variables_(std::move(variables)),
      group_(group),
      worker_(group.rounds().worker_index()),
      num_workers_(group.num_workers()),
      form_(form),
      partial_sums_(group),
      factors_(variables_, group),
      slices_(static_cast<std::size_t>(num_workers_)),
      arrived_(static_cast<std::size_t>(num_workers_)) {}

bool GradientExchange::takes(std::size_t i) const {
  const at::ScalarType type = variables_[i]->like().scalar_type();
  return type == at::kFloat || type == at::kDouble;
}

void GradientExchange::begin_step(const std::vector<GradientsOnWorkers>& all) {
  bytes_sent_ = 0;
  factored_.assign(variables_.size(), 0);
  std::vector<char> summed(variables_.size());
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (!takes(i) || all[i].gradients != Gradients::kSome) continue;
    const at::Tensor& like = variables_[i]->like();
    bool as_factors = !all[i].factors.empty() && form_ != UpdateForm::kSums;
    if (as_factors && form_ != UpdateForm::kFactors)
      as_factors = travels_as_factors(like.size(0), like.size(1), all[i].factors);
    (as_factors ? factored_ : summed)[i] = 1;
  }
  factors_.begin_step(all, factored_);
  if (summed != summed_) lay_out(summed);
}

void GradientExchange::lay_out(const std::vector<char>& summed) {
  summed_.clear();  // where memory is short, the next step begins again
  pieces_.clear();
  places_.assign(variables_.size(), 0);
  int64_t bytes = 0;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (!summed[i]) continue;
    places_[i] = bytes;
    const at::Tensor& like = variables_[i]->like();
    const auto size = static_cast<int64_t>(like.element_size());
    for (int64_t offset = 0; offset < like.numel(); offset += kSumBlock) {
      pieces_.push_back({i, offset, std::min(kSumBlock, like.numel() - offset), bytes + offset * size});
    }
    bytes += (variables_[i]->bytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
  // A slice begins with the first piece that does not begin before its share of the row.
  std::size_t piece = 0;
  for (int64_t w = 0; w < num_workers_; ++w) {
    Slice& own = slices_[static_cast<std::size_t>(w)];
    own.first_piece = piece;
    own.begin = piece < pieces_.size() ? pieces_[piece].place : bytes;
    while (piece < pieces_.size() && pieces_[piece].place < bytes / num_workers_ * (w + 1)) ++piece;
    if (w + 1 == num_workers_) piece = pieces_.size();
    own.end_piece = piece;
    own.bytes = (piece < pieces_.size() ? pieces_[piece].place : bytes) - own.begin;
  }
  grow(packed_, bytes * static_cast<int64_t>(subtrees(worker_).size()));
  grow(sums_, bytes);
  for (int64_t w = 0; w < num_workers_; ++w) {
    if (w == worker_) continue;
    grow(arrived_[static_cast<std::size_t>(w)], own_slice().bytes * static_cast<int64_t>(subtrees(w).size()));
  }
  summed_ = summed;
}

std::byte* GradientExchange::partial_sum(const Slice& slice, std::size_t subtree) const {
  const auto count = static_cast<int64_t>(subtrees(worker_).size());
  return bytes_of(packed_) + slice.begin * count + slice.bytes * static_cast<int64_t>(subtree);
}

void GradientExchange::pack(const GradientTable& gradients, int lane, int num_lanes) {
  partial_sums_.restart(lane);
  for (const Slice& slice : slices_) {
    for_each_piece(slice.first_piece, slice.end_piece, lane, num_lanes, [&](std::size_t p) {
      const Piece& piece = pieces_[p];
      if (variables_[piece.variable]->like().scalar_type() == at::kDouble) {
        pack_piece<double>(gradients, lane, piece, slice);
      } else {
        pack_piece<float>(gradients, lane, piece, slice);
      }
    });
  }
}

template <class T>
void GradientExchange::pack_piece(const GradientTable& gradients, int lane, const Piece& piece, const Slice& slice) {
  const std::vector<Subtree>& own = subtrees(worker_);
  for (std::size_t s = 0; s < own.size(); ++s) {
    auto* const to = reinterpret_cast<T*>(partial_sum(slice, s) + (piece.place - slice.begin));
    partial_sums_.write(gradients, lane, piece.variable, piece.offset, piece.count, own[s], to, std::memcpy);
  }
}

void GradientExchange::send(const GradientTable& gradients) {
  if (factors_.has_any()) factors_.send(gradients);
  if (pieces_.empty()) return;
  std::vector<std::span<const std::byte>> to(static_cast<std::size_t>(num_workers_));
  std::vector<std::span<std::byte>> from(to.size());
  const std::size_t subtrees_here = subtrees(worker_).size();
  for (int64_t w = 0; w < num_workers_; ++w) {
    if (w == worker_) continue;
    const auto at = static_cast<std::size_t>(w);
    to[at] = {partial_sum(slice(w), 0), static_cast<std::size_t>(slice(w).bytes) * subtrees_here};
    from[at] = {bytes_of(arrived_[at]), static_cast<std::size_t>(own_slice().bytes) * subtrees(w).size()};
    bytes_sent_ += static_cast<int64_t>(to[at].size());
  }
  group_.rounds().exchange(to, from);
}

void GradientExchange::add(int lane, int num_lanes) {
  for_each_piece(own_slice().first_piece, own_slice().end_piece, lane, num_lanes, [&](std::size_t p) {
    const Piece& piece = pieces_[p];
    if (variables_[piece.variable]->like().scalar_type() == at::kDouble) {
      add_piece<double>(piece);
    } else {
      add_piece<float>(piece);
    }
  });
}

template <class T>
void GradientExchange::add_piece(const Piece& piece) {
  static const TreeSum<T> sum_of = tree_sum<T>();
  const int64_t replicas = group_.num_replicas();
  const Slice& slice = own_slice();
  // Each partial sum stands as the value of its subtree's first replica.
  c10::SmallVector<const T*, 16> inputs(static_cast<std::size_t>(replicas), nullptr);
  for (int64_t w = 0; w < num_workers_; ++w) {
    for (std::size_t s = 0; s < subtrees(w).size(); ++s) {
      const std::byte* const from =
          w == worker_ ? partial_sum(slice, s)
                       : bytes_of(arrived_[static_cast<std::size_t>(w)]) + slice.bytes * static_cast<int64_t>(s);
      inputs[static_cast<std::size_t>(subtrees(w)[s].first)] =
          reinterpret_cast<const T*>(from + (piece.place - slice.begin));
    }
  }
  const T* const sum = sum_of(inputs.data(), replicas, 0, piece.count, scratch_for<T>(replicas));
  std::memcpy(bytes_of(sums_) + piece.place, sum, static_cast<std::size_t>(piece.count) * sizeof(T));
}

void GradientExchange::send_sums() {
  if (pieces_.empty()) return;
  std::vector<std::span<const std::byte>> to(static_cast<std::size_t>(num_workers_));
  std::vector<std::span<std::byte>> from(to.size());
  for (int64_t w = 0; w < num_workers_; ++w) {
    if (w == worker_) continue;
    const auto at = static_cast<std::size_t>(w);
    to[at] = {bytes_of(sums_) + own_slice().begin, static_cast<std::size_t>(own_slice().bytes)};
    from[at] = {bytes_of(sums_) + slice(w).begin, static_cast<std::size_t>(slice(w).bytes)};
    bytes_sent_ += own_slice().bytes;
  }
  group_.rounds().exchange(to, from);
}

GradientExchange::Travelled GradientExchange::travelled(std::size_t i) const {
  if (i < factored_.size() && factored_[i]) return {Travelled::As::kFactors, factors_.bytes_sent_of(i)};
  if (i >= summed_.size() || !summed_[i]) return {};
  // Partial sums of what others own, and to each of them the sum of what this worker owns.
  const int64_t begin = places_[i];
  const int64_t end = begin + variables_[i]->bytes();
  const int64_t own =
      std::max<int64_t>(std::min(end, own_slice().begin + own_slice().bytes) - std::max(begin, own_slice().begin), 0);
  const auto subtrees_here = static_cast<int64_t>(subtrees(worker_).size());
  return {Travelled::As::kSums, (end - begin - own) * subtrees_here + own * (num_workers_ - 1)};
}

void GradientExchange::set_leaves(GradientTable& gradients) const {
  // A sum stands as the leaf of the first replica.
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (summed_[i]) gradients.set_leaf(i, 0, Leaf(bytes_of(sums_) + places_[i]));
  }
  factors_.set_leaves(gradients);
}

}  // namespace lockstep::internal
