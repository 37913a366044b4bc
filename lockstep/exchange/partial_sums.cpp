#include "lockstep/exchange/partial_sums.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <type_traits>

#include "lockstep/reduce/loops/stream_copy.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline exchange {

RowLayout row_of_blocks(std::span<const std::shared_ptr<VariableState>> variables, std::span<const char> taken) {
  std::vector<RowVariable> in_row;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    if (taken[i]) in_row.push_back({i, row_numbers_of(*variables[i]), variables[i]->numbers().numel()});
  }
  return RowLayout(variables.size(), in_row, RowLayout::Cut::kBlocks);
}

PartialSums::PartialSums(const ReplicaGroup& group)
    : worker_(group.rounds().worker_index()),
      own_(block_of(group.num_replicas(), group.num_workers(), worker_)),
      made_(static_cast<std::size_t>(group.plan().num_lanes())) {
  constexpr int64_t kMadeElements = 16 << 10;  // of all replicas' blocks, together: they stay in a cache
  const int64_t replicas = group.num_local_replicas();
  for (auto& of_lane : made_) {
    of_lane.assign(static_cast<std::size_t>(replicas), FactorBlocks(kMadeElements / replicas));
  }
  for (int64_t w = 0; w < group.num_workers(); ++w) {
    const Block block = block_of(group.num_replicas(), group.num_workers(), w);
    subtrees_.push_back(maximal_subtrees(group.num_replicas(), block.first, block.count));
  }
}

void PartialSums::pack(const GradientTable& gradients, int lane, const RowPiece& piece, const SumsInMemory& to,
                       bool streams) {
  with_types(piece.numbers,
             [&]<class T, class Wire>(T, Wire) { pack_as<T, Wire>(gradients, lane, piece, to, streams); });
}

template <class T, class Wire>
void PartialSums::pack_as(const GradientTable& gradients, int lane, const RowPiece& piece, const SumsInMemory& to,
                          bool streams) {
  static const TreeSum<T> sum_of = tree_sum<T>();
  std::vector<FactorBlocks>& made = made_[static_cast<std::size_t>(lane)];
  const std::vector<Subtree>& own = subtrees(worker_);
  c10::SmallVector<const T*, 16> inputs;
  for (std::size_t s = 0; s < own.size(); ++s) {
    inputs.clear();
    const int64_t first = own[s].first - own_.first;
    for (int64_t r = first; r < first + own[s].count; ++r) {
      inputs.push_back(
          gradients.own_leaf(piece.variable, r).block<T>(piece.offset, piece.count, made[static_cast<std::size_t>(r)]));
    }
    auto* const target = reinterpret_cast<Wire*>(to.at(s, piece.place));
    const T* sum = sum_of(inputs.data(), own[s].count, 0, piece.count, scratch_for<T>(own[s].count));
    if (!sum) {
      T* const nothing = block_memory<T>(1);
      std::fill_n(nothing, piece.count, static_cast<T>(-0.0));  // adds nothing: x + -0 has the bits of x for every x
      sum = nothing;
    }
    if constexpr (std::is_same_v<T, Wire>) {
      if (streams) {
        stream_copy(target, sum, static_cast<std::size_t>(piece.count) * sizeof(T));
        continue;
      }
    }
    encode(sum, piece.count, target);
  }
}

namespace {

template <class T, class Wire>
void add_piece_as(const RowPiece& piece, std::span<const SumsOfSubtrees> parts, const Subtree& within, std::byte* to) {
  static const TreeSum<T> sum_of = tree_sum<T>();
  T* decoded = nullptr;
  if constexpr (!std::is_same_v<T, Wire>) decoded = block_memory<T>(static_cast<std::size_t>(within.count));
  c10::SmallVector<const T*, 16> inputs(static_cast<std::size_t>(within.count), nullptr);
  for (const SumsOfSubtrees& part : parts) {
    for (std::size_t s = 0; s < part.subtrees.size(); ++s) {
      const int64_t at = part.subtrees[s].first - within.first;
      if (at < 0 || at >= within.count) continue;
      inputs[static_cast<std::size_t>(at)] =
          decode(reinterpret_cast<const Wire*>(part.sums.at(s, piece.place)), piece.count, decoded);
      if (decoded) decoded += kSumBlock;
    }
  }
  const T* const sum = sum_of(inputs.data(), within.count, 0, piece.count, scratch_for<T>(within.count));
  encode(sum, piece.count, reinterpret_cast<Wire*>(to));
}

}  // namespace

void add_piece(const RowPiece& piece, std::span<const SumsOfSubtrees> parts, const Subtree& within, std::byte* to) {
  with_types(piece.numbers, [&]<class T, class Wire>(T, Wire) { add_piece_as<T, Wire>(piece, parts, within, to); });
}

}  // namespace lockstep::internal::exchange
