// The summands of a sum over replicas. A sum asks its leaves for blocks of elements, and never for an address.
#pragma once

#include <cstdint>

namespace lockstep::internal {

/// One summand of a sum over replicas: a replica's gradient, the sum that a reducer has made, or, with several workers,
/// the sum of another worker's subtree (addition_order.h), which stands as the value of the subtree's first replica. An
/// absent leaf adds nothing, not even zero. A leaf owns nothing: the memory that it refers to outlives it.
///
/// Today every leaf lies in memory. Code that asks for blocks also works with a leaf that computes each block on
/// request, such as the product of two factors.
class Leaf {
 public:
  /// Absent.
  Leaf() = default;
  /// Elements in dense memory; null: absent.
  explicit Leaf(const void* memory) : memory_(memory) {}

  bool present() const { return memory_ != nullptr; }
  /// Elements [offset, offset + count), each a T, or null where the leaf is absent. They lie in the leaf's own memory,
  /// or in `scratch`, which has room for them. Only a leaf that computes its blocks uses `scratch`, which may be null
  /// where there is no such leaf.
  template <class T>
  const T* block(int64_t offset, [[maybe_unused]] int64_t count, [[maybe_unused]] T* scratch) const {
    return memory_ ? static_cast<const T*>(memory_) + offset : nullptr;
  }
  /// An address that the processor may fetch before the first block is asked for; null where there is none.
  const void* to_fetch() const { return memory_; }

 private:
  const void* memory_ = nullptr;
};

}  // namespace lockstep::internal
