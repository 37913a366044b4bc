#include "lockstep/reduce/addition_order.h"

namespace lockstep::internal::inline reduce {

namespace {

/// Appends the maximal subtrees of [begin, end) that lie within `tree`.
void collect_subtrees(const Subtree& tree, int64_t begin, int64_t end, std::vector<Subtree>& found) {
  const int64_t tree_end = tree.first + tree.count;
  if (tree_end <= begin || end <= tree.first) return;
  if (begin <= tree.first && tree_end <= end) {
    found.push_back(tree);
    return;
  }
  const int64_t left = split_of(tree.count);
  collect_subtrees({tree.first, left}, begin, end, found);
  collect_subtrees({tree.first + left, tree.count - left}, begin, end, found);
}

}  // namespace

std::vector<Subtree> maximal_subtrees(int64_t replicas, int64_t first, int64_t count) {
  std::vector<Subtree> found;
  if (count > 0) collect_subtrees({0, replicas}, first, first + count, found);
  return found;
}

}  // namespace lockstep::internal::reduce
