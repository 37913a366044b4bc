// Which gradients are finite.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "lockstep/gradient/gradient_table.h"
#include "lockstep/reduce/reduce_tensors.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline gradient {

bool GradientTable::is_finite(std::size_t i, int64_t r) const {
  const at::NoGradGuard no_grad;
  const Leaf own = own_leaf(i, r);
  at::Tensor numbers;
  if (own.present()) {
    numbers = tensor_of(own, i);
  } else if (const std::shared_ptr<const Rows> rows = own_rows(i, r)) {
    numbers = rows->values;
  }
  return !numbers.defined() || at::isfinite(numbers).all().item<bool>();
}

std::vector<int64_t> GradientTable::replicas_not_finite(std::size_t i) const {
  std::vector<int64_t> found;
  for (int64_t r = 0; r < replicas_; ++r) {
    if (!is_finite(i, r)) found.push_back(r);
  }
  return found;
}

bool GradientTable::sum_is_finite(std::size_t i, const ReplicaGroup& group) const {
  const at::NoGradGuard no_grad;
  if (is_wide(i)) return at::isfinite(reduced_[i]).all().item<bool>();
  if (!exchanged_.empty()) return sum_is_finite(i, 0, variables_[i]->numbers().numel());
  // The fused update adds half-precision gradients in float32.
  const bool wide = variables_[i]->number_type() == at::kDouble;
  return at::isfinite(sum(i, group, wide ? at::kDouble : at::kFloat)).all().item<bool>();
}

bool GradientTable::sum_is_finite(std::size_t i, int64_t offset, int64_t count) const {
  const at::NoGradGuard no_grad;
  const at::Tensor& like = variables_[i]->numbers();
  std::vector<at::Tensor> values;
  for (std::size_t at = i; at < exchanged_.size(); at += variables_.size()) {
    const Leaf& leaf = exchanged_[at];
    if (const Factors* factors = leaf.factors()) {
      values.push_back(factors->product().flatten().narrow(0, offset, count));
    } else if (leaf.present()) {
      auto* const memory = static_cast<const char*>(leaf.memory()) + offset * static_cast<int64_t>(like.element_size());
      values.push_back(at::from_blob(const_cast<char*>(memory), {count}, like.options()));
    } else {
      values.emplace_back();
    }
  }
  const at::Tensor total = fold_summands(Reduction::kSum, values);
  return !total.defined() || at::isfinite(total).all().item<bool>();
}

}  // namespace lockstep::internal::gradient
