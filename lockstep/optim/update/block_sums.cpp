#include "lockstep/optim/update/block_sums.h"

#include <algorithm>
#include <utility>

#include "lockstep/reduce/loops/tree_sum.h"

namespace lockstep::internal::inline optim {

namespace {

const char kZeros[kBlockBytes * 2] = {};

// Of all replicas' blocks that are made from factors, together: half of a second-level cache; or a few samples of the
// matrix where these are longer. A lane keeps this memory until the optimizer ends.
constexpr int64_t kMadeElements = 64 << 10;

}  // namespace

BlockSums::BlockSums(ReplicaRange replicas)
    : replicas_(replicas),
      row_(static_cast<std::size_t>(replicas.count)),
      made_(row_.size(), FactorBlocks(kMadeElements / replicas.count)),
      scratch_(static_cast<std::size_t>(scratch_rows(replicas.count) * kSumBlock) * sizeof(double)) {}

void BlockSums::expect_factors(int64_t rows, int64_t columns) {
  for (FactorBlocks& made : made_) made.reserve(rows, columns, kBlockBytes / static_cast<int64_t>(sizeof(float)));
}

template <class T>
GradientSum<T> BlockSums::sum_of_row(int64_t count) {
  static const TreeSum<T> add = tree_sum<T>();
  const auto* const inputs = reinterpret_cast<const T* const*>(row_.data());
  if (replicas_.count == 2 && inputs[0] && inputs[1]) return {inputs[0], inputs[1]};
  const T* const sum = add(inputs, replicas_.count, 0, count, reinterpret_cast<T*>(scratch_.data()));
  return {sum ? sum : reinterpret_cast<const T*>(kZeros), nullptr};  // present, but zero on every replica
}

template <class T>
GradientSum<T> BlockSums::sum(const GradientTable& gradients, std::size_t i, int64_t offset, int64_t count) {
  for (int64_t r = 0; r < replicas_.count; ++r) {
    const auto at = static_cast<std::size_t>(r);
    row_[at] = gradients.leaf(i, replicas_.first + r).block<T>(offset, count, made_[at]);
  }
  return sum_of_row<T>(count);
}

template <class Half>
GradientSum<float> BlockSums::wide_sum(const GradientTable& gradients, std::size_t i, int64_t offset, int64_t count,
                                       float*& buffer) {
  for (int64_t r = 0; r < replicas_.count; ++r) {
    const auto at = static_cast<std::size_t>(r);
    const Leaf leaf = gradients.leaf(i, replicas_.first + r);
    if (gradients.is_wide(i) || !leaf.present()) {
      row_[at] = leaf.block<float>(offset, count, made_[at]);
      continue;
    }
    std::copy_n(leaf.block<Half>(offset, count, made_[at]), count, buffer);
    row_[at] = std::exchange(buffer, buffer + kSumBlock);
  }
  return sum_of_row<float>(count);
}

template GradientSum<float> BlockSums::sum(const GradientTable&, std::size_t, int64_t, int64_t);
template GradientSum<double> BlockSums::sum(const GradientTable&, std::size_t, int64_t, int64_t);
template GradientSum<float> BlockSums::wide_sum<at::Half>(const GradientTable&, std::size_t, int64_t, int64_t, float*&);
template GradientSum<float> BlockSums::wide_sum<at::BFloat16>(const GradientTable&, std::size_t, int64_t, int64_t,
                                                              float*&);

}  // namespace lockstep::internal::optim
