// What a table of gradients says of its sparse gradients, which it keeps as rows or writes, and of its factors.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/gradient/gradient_misfit.h"
#include "lockstep/gradient/gradient_table.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline gradient {

void GradientTable::collect_sparse(std::size_t i, int64_t r, const at::Tensor& gradient, bool weightless) {
  const at::NoGradGuard no_grad;
  const at::Tensor& like = variables_[i]->like();
  if (!fits_but_for_layout(gradient, like)) throw_misfit(*variables_[i], gradient, r);
  const SparseSupport support = sparse_(i);
  const bool as_rows = support.rows && is_of_rows(gradient) && like.is_contiguous();
  if (!as_rows && !support.dense) {
    throw_not_dense(
        *variables_[i], r,
        support.rows ? "an update of rows (sparse in one dimension, of a contiguous variable)" : support.refused);
  }
  if (!as_rows) {
    if (!weightless) keep_copy(i, r, gradient.to_dense());
    return;
  }
  try {
    rows_[r].push_back({i, std::make_shared<const Rows>(weightless ? Rows() : coalesced(gradient))});
  } catch (const std::out_of_range&) {
    throw UsageError("LS-GRADIENT-MISFIT",
                     fmt::format("the sparse gradient of variable '{}' on replica {} has rows that the variable lacks",
                                 variables_[i]->name(), variables_[i]->group()->first_replica() + r),
                     "leave .grad() to backward(), or make it with indices from 0 to below the variable's first size");
  }
}

std::shared_ptr<const Rows> GradientTable::own_rows(std::size_t i, int64_t r) const {
  const std::vector<RowsOfVariable>& all = rows_[static_cast<std::size_t>(r)];
  const auto found = std::ranges::lower_bound(all, i, {}, &RowsOfVariable::variable);
  return found != all.end() && found->variable == i ? found->rows : nullptr;
}

bool GradientTable::in_rows_here(std::size_t i) const {
  bool any = false;
  for (int64_t r = 0; r < replicas_; ++r) {
    if (!has_[slot(i, r)]) continue;
    if (!own_rows(i, r)) return false;
    any = true;
  }
  return any;
}

void GradientTable::write_other_rows() {
  const at::NoGradGuard no_grad;
  for (int64_t r = 0; r < replicas_; ++r) {
    for (const auto& [i, rows] : rows_[static_cast<std::size_t>(r)]) {
      if (in_rows(i) || rows->count() == 0) continue;
      const at::Tensor& numbers = variables_[i]->numbers();
      at::Tensor all = at::zeros(numbers.sizes(), rows->values.options());
      all.view({numbers.size(0), rows->values.size(1)}).index_copy_(0, at::tensor(rows->ids), rows->values);
      all = all.to(numbers.scalar_type());
      keep_copy(i, r, variables_[i]->like().is_complex() ? at::view_as_complex(all) : all);
    }
  }
}

bool GradientTable::has_factors(std::size_t i) const {
  for (int64_t r = 0; r < replicas_; ++r) {
    if (own_leaf(i, r).factors()) return true;
  }
  return false;
}

Gradients GradientTable::gradients_here(std::size_t i) const {
  Gradients found = Gradients::kNone;
  for (int64_t r = 0; r < replicas_; ++r) {
    if (own_leaf(i, r).present()) return Gradients::kSome;
    if (!has_[slot(i, r)]) continue;
    const std::shared_ptr<const Rows> rows = own_rows(i, r);
    if (rows && rows->count() > 0) return Gradients::kSome;
    found = Gradients::kOfZero;
  }
  return found;
}

}  // namespace lockstep::internal::gradient
