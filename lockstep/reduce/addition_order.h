// The order in which values of replicas are added. This is the one place that decides it (docs/determinism.md).
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::internal::inline reduce {

/// Where the tree over `count` neighbouring replicas splits: the largest power of two below `count`, which is >= 2.
constexpr int64_t split_of(int64_t count) {
  int64_t left = 1;
  while (left * 2 < count) left *= 2;
  return left;
}

/// Folds the replicas [first, first + count) in tree order: `leaf(i)` is replica i's value, `add(a, b)` joins the
/// values of two neighbouring subtrees, left before right. `count` >= 1.
/// Invariant: the order depends on `count` alone, so a block of replicas that is a subtree has the same partial value
/// wherever it is computed.
template <class Leaf, class Add>
auto fold_in_tree_order(int64_t first, int64_t count, const Leaf& leaf, const Add& add) -> decltype(leaf(first)) {
  if (count == 1) return leaf(first);
  const int64_t left = split_of(count);
  auto a = fold_in_tree_order(first, left, leaf, add);
  auto b = fold_in_tree_order(first + left, count - left, leaf, add);
  return add(a, b);
}

/// Neighbouring replicas [first, first + count) that are a subtree of the tree over all.
struct Subtree {
  int64_t first;
  int64_t count;
  bool operator==(const Subtree&) const = default;
};

/// The fewest subtrees of the tree over `replicas` that make up the block [first, first + count), in order. The block
/// lies within [0, replicas); an empty one has no subtrees.
/// Invariant: a worker may add within each subtree of its block and pass on one partial sum for each. Let each partial
/// sum stand as the value of its subtree's first replica, and let the other replicas be absent. Then the sum over all
/// replicas has the bits of the sum over the replicas' own values.
std::vector<Subtree> maximal_subtrees(int64_t replicas, int64_t first, int64_t count);

}  // namespace lockstep::internal::reduce
