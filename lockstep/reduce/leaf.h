// The summands of a sum over replicas. A sum asks its leaves for blocks of elements, and never for an address.
#pragma once

#include <cstdint>
#include <type_traits>

#include "lockstep/reduce/factors.h"

namespace lockstep::internal::inline reduce {

/// One summand of a sum over replicas: a replica's gradient, the sum that a reducer has made, or, with several workers,
/// the sum of another worker's subtree (addition_order.h), which stands as the value of the subtree's first replica. An
/// absent leaf adds nothing, not even zero. A leaf owns nothing: what it refers to outlives it.
class Leaf {
 public:
  /// Absent.
  Leaf() = default;
  /// Elements in dense memory; null: absent.
  explicit Leaf(const void* memory) : memory_(memory) {}
  /// The elements of a dense float32 matrix, row by row, which are made as they are asked for.
  explicit Leaf(const Factors& factors) : factors_(&factors) {}

  bool present() const { return memory_ != nullptr || factors_ != nullptr; }
  /// Elements [offset, offset + count), each a T (a float where the leaf is factors), or null where the leaf is absent.
  /// They lie in the leaf's own memory, or in `made`, where they stay until the next call with it. Each leaf of a sum
  /// has a `made` of its own.
  template <class T>
  const T* block(int64_t offset, int64_t count, FactorBlocks& made) const {
    if constexpr (std::is_same_v<T, float>) {
      if (factors_) return made.block(*factors_, offset, count);
    }
    return memory_ ? static_cast<const T*>(memory_) + offset : nullptr;
  }
  /// Dense memory with all elements, or null where the leaf is absent or not in memory.
  const void* memory() const { return memory_; }
  /// The factors, or null where the leaf is absent or in memory.
  const Factors* factors() const { return factors_; }

 private:
  const void* memory_ = nullptr;
  const Factors* factors_ = nullptr;
};

}  // namespace lockstep::internal::reduce
