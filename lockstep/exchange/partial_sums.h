// What each worker hands on of its replicas' gradients: a sum for each maximal subtree of its block of replicas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/core/blocks.h"
#include "lockstep/exchange/row.h"
#include "lockstep/gradient/gradient_table.h"
#include "lockstep/reduce/addition_order.h"
#include "lockstep/reduce/factors.h"
#include "lockstep/reduce/loops/bfloat16.h"
#include "lockstep/reduce/loops/tree_sum.h"

namespace lockstep::internal::inline exchange {

/// The numbers of a variable of float32 or float64, as they are.
inline RowNumbers row_numbers_of(const VariableState& variable) {
  return variable.number_type() == at::kDouble ? RowNumbers::kDouble : RowNumbers::kFloat;
}
/// A row of the variables i with `taken[i]`, in their order and as they are, of pieces that are blocks of an update.
RowLayout row_of_blocks(std::span<const std::shared_ptr<VariableState>> variables, std::span<const char> taken);

/// Calls work(T{}, Wire{}) with the type of a variable's numbers and the type that they have in a row.
template <class Work>
void with_types(RowNumbers numbers, const Work& work) {
  switch (numbers) {
    case RowNumbers::kFloat: return work(float{}, float{});
    case RowNumbers::kDouble: return work(double{}, double{});
    case RowNumbers::kRounded: return work(float{}, Bfloat16{});
  }
}

/// Scratch memory of the calling thread for sums of so many replicas.
template <class T>
T* scratch_for(int64_t replicas) {
  thread_local std::vector<T> scratch;  // grown once
  const auto size = static_cast<std::size_t>(scratch_rows(replicas) * kSumBlock);
  if (scratch.size() < size) scratch.resize(size);
  return scratch.data();
}

/// Memory that has partial sums of a part of a row, one behind another.
struct SumsInMemory {
  std::byte* memory = nullptr;
  int64_t begin = 0;  // of the part, within the row
  int64_t bytes = 0;  // of the part

  /// Byte `place` of the row in the k-th of them. It may be outside of the part, and then has no meaning by itself.
  std::byte* at(std::size_t k, int64_t place) const {
    return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(memory) +
                                        static_cast<uintptr_t>(static_cast<int64_t>(k) * bytes + (place - begin)));
  }
  /// The first `count` of them.
  std::span<std::byte> all(std::size_t count) const { return {memory, static_cast<std::size_t>(bytes) * count}; }
};

/// The sums of these subtrees, in memory.
struct SumsOfSubtrees {
  std::span<const Subtree> subtrees;
  SumsInMemory sums;
};

/// Adds up a piece in tree order over the replicas `within`, and writes the sum, as the row has it, to `to`. Each
/// partial sum stands as the value of its subtree's first replica; a sum whose first replica is not in `within` is left
/// out.
void add_piece(const RowPiece& piece, std::span<const SumsOfSubtrees> parts, const Subtree& within, std::byte* to);

/// Lanes call restart() and pack() side by side, each with its own number.
class PartialSums {
 public:
  explicit PartialSums(const ReplicaGroup& group);

  int64_t num_workers() const { return static_cast<int64_t>(subtrees_.size()); }
  /// Those of a worker's block of replicas.
  const std::vector<Subtree>& subtrees(int64_t worker) const { return subtrees_[static_cast<std::size_t>(worker)]; }
  int64_t count(int64_t worker) const { return static_cast<int64_t>(subtrees(worker).size()); }

  /// Call on each lane before its first pack() of a step.
  void restart(int lane) {
    for (FactorBlocks& one : made_[static_cast<std::size_t>(lane)]) one.restart();
  }
  /// Writes this worker's partial sums of a piece, as the row has them. Where `streams`, those that are not rounded go
  /// past the caches.
  void pack(const GradientTable& gradients, int lane, const RowPiece& piece, const SumsInMemory& to,
            bool streams = false);

  /// Gives `gradients` the leaves of variable i, which begins at byte `place` of the row: the gradients of this
  /// worker's replicas, and the partial sums of every other worker w, which lie in `sums_of(w)`.
  template <class SumsOf>
  void set_leaves(GradientTable& gradients, std::size_t i, int64_t place, const SumsOf& sums_of) const;

 private:
  template <class T, class Wire>
  void pack_as(const GradientTable& gradients, int lane, const RowPiece& piece, const SumsInMemory& to, bool streams);

  const int64_t worker_;
  const Block own_;                              // replicas
  std::vector<std::vector<Subtree>> subtrees_;   // by worker
  std::vector<std::vector<FactorBlocks>> made_;  // by lane, then local replica: blocks of factors that become sums
};

template <class SumsOf>
void PartialSums::set_leaves(GradientTable& gradients, std::size_t i, int64_t place, const SumsOf& sums_of) const {
  for (int64_t r = own_.first; r < own_.end(); ++r) gradients.set_leaf(i, r, gradients.own_leaf(i, r - own_.first));
  for (int64_t w = 0; w < num_workers(); ++w) {
    if (w == worker_) continue;
    const SumsInMemory sums = sums_of(w);
    for (std::size_t s = 0; s < subtrees(w).size(); ++s)
      gradients.set_leaf(i, subtrees(w)[s].first, Leaf(sums.at(s, place)));
  }
}

// Between a variable's numbers and those of a row.

/// Copies, or rounds.
template <class T>
void encode(const T* from, int64_t count, T* to) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
}
inline void encode(const float* from, int64_t count, Bfloat16* to) { to_bfloat16(from, count, to); }

/// Gives the row's own memory; or fills `scratch`, of kSumBlock elements.
template <class T>
const T* decode(const T* from, int64_t /*count*/, T* /*scratch*/) {
  return from;
}
inline const float* decode(const Bfloat16* from, int64_t count, float* scratch) {
  from_bfloat16(from, count, scratch);
  return scratch;
}

/// Memory of the calling thread for so many blocks.
template <class T>
T* block_memory(std::size_t count) {
  thread_local std::vector<T> memory;  // grown once
  const std::size_t size = count * static_cast<std::size_t>(kSumBlock);
  if (memory.size() < size) memory.resize(size);
  return memory.data();
}

}  // namespace lockstep::internal::exchange
