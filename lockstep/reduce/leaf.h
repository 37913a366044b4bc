// What is still to be added: a sum asks its leaves for blocks and never for an address.
#pragma once

#include <cstdint>

namespace lockstep::internal {

/// One summand of a sum over replicas: a replica's gradient, the sum that a reducer has made, or, with several workers,
/// the sum of another worker's subtree (addition_order.h), which stands as the value of the subtree's first replica. An
/// absent leaf adds nothing, not even zero. It owns nothing: what it refers to outlives it.
///
/// Today a leaf lies in memory. Who asks for blocks also works with one that makes each block when it is asked for it,
/// such as the product of two factors.
class Leaf {
 public:
  /// Absent.
  Leaf() = default;
  /// Elements in dense memory; null: absent.
  explicit Leaf(const void* memory) : memory_(memory) {}

  bool present() const { return memory_ != nullptr; }
  /// Elements [offset, offset + count), each a T, or null where the leaf is absent. They are in the leaf's own memory,
  /// or in `scratch`, which has room for them: only leaves that lie in no memory use it, and where there is none of
  /// these it may be null.
  template <class T>
  const T* block(int64_t offset, [[maybe_unused]] int64_t count, [[maybe_unused]] T* scratch) const {
    return memory_ ? static_cast<const T*>(memory_) + offset : nullptr;
  }
  /// What a processor may fetch before the first block is asked for; null where there is nothing.
  const void* to_fetch() const { return memory_; }

 private:
  const void* memory_ = nullptr;
};

}  // namespace lockstep::internal
