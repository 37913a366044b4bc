#include "lockstep/gradient/gradient_table.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/core/denormals.h"
#include "lockstep/core/digest.h"
#include "lockstep/core/error.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/gradient/absent_gradients.h"
#include "lockstep/gradient/gradient_misfit.h"
#include "lockstep/linear/factored_tensor.h"
#include "lockstep/reduce/reduce_tensors.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline gradient {

GradientTable::GradientTable(std::vector<std::shared_ptr<VariableState>> variables, int64_t replicas,
                             std::function<SparseSupport(std::size_t)> sparse)
    : variables_(std::move(variables)),
      replicas_(replicas),
      leaves_(variables_.size() * static_cast<std::size_t>(replicas)),
      has_(leaves_.size()),
      converted_(static_cast<std::size_t>(replicas)),
      factors_(static_cast<std::size_t>(replicas)),
      rows_(static_cast<std::size_t>(replicas)),
      sparse_(std::move(sparse)),
      absent_(static_cast<std::size_t>(replicas)),
      named_(variables_.size()) {
  for (const auto& variable : variables_) components_.add(*variable);
}

void GradientTable::collect(int64_t r, bool weightless, bool had_empty_part) {
  Absent absent{.had_empty_part = had_empty_part};
  release_kept(r);  // of a step that failed
  const bool all_sound = variables_.empty() || variables_.front()->counts()->damaged == 0;
  components_.for_each(OfCollect(), r, [&](std::size_t i, const Component& component) {
    if (!all_sound || !component.as_left()) variables_[i]->check_component(r);  // throws where needed
    const at::Tensor& tensor = component.tensor;
    const at::Tensor& gradient = tensor.unsafeGetTensorImpl()->grad();
    has_[slot(i, r)] = gradient.defined() ? 1 : 0;
    Leaf& leaf = leaves_[slot(i, r)];
    leaf = Leaf();
    if (!gradient.defined()) {
      if (!tensor.requires_grad()) {
        absent.frozen = Digest(absent.frozen).with(i).value();
      } else if (!named_[i] && !had_empty_part) {
        absent.is_unlogged = true;
      }
      return;
    }
    if (gradient.layout() == at::kSparse) return collect_sparse(i, r, gradient, weightless);
    if (!fits(gradient, tensor)) throw_misfit(*variables_[i], gradient, r);
    if (weightless) return;
    const std::shared_ptr<const Factors> factors = factors_of(gradient);
    // The update makes them row by row, in its own modes.
    if (factors && tensor.is_contiguous() && factors->modes() == floating_point_modes()) {
      leaf = Leaf(*factors);
      factors_[r].push_back(factors);
      return;
    }
    require_in_memory(gradient, *variables_[i]);
    // A gradient that shares its memory, perhaps with a weight, could change while the update writes weights.
    const at::Storage& storage = gradient.unsafeGetTensorImpl()->unsafe_storage();
    const bool own_memory = storage.use_count() == 1 && storage.resizable();  // that of at::from_blob is not resizable
    if (own_memory && gradient.strides() == tensor.strides() && !gradient.is_neg() && !gradient.is_conj()) {
      leaf = Leaf(address_of(gradient));
    } else {
      keep_copy(i, r, gradient);
    }
  });
  absent_[r] = absent;
}

void GradientTable::keep_copy(std::size_t i, int64_t r, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  const at::Tensor& like = variables_[i]->like();
  at::Tensor same_layout = at::empty_strided(like.sizes(), like.strides(), like.options());
  same_layout.copy_(gradient);
  leaves_[slot(i, r)] = Leaf(address_of(same_layout));
  converted_[r].push_back(std::move(same_layout));
}

void GradientTable::agree_on_presence(const ReplicaGroup& group, bool across_workers, std::string_view report) {
  if (across_workers) {
    told_ = gradients_on_workers(group, variables_, *this, report, [&] { check_frozen(); });
  } else {
    check_frozen();
  }
  has_rows_ = std::ranges::any_of(told_.gradients, &GradientsOnWorkers::in_rows) ||
              std::ranges::any_of(rows_, [](const auto& of_replica) { return !of_replica.empty(); });
  if (has_rows_) write_other_rows();
}

void GradientTable::log_absent() {
  if (std::none_of(absent_.begin(), absent_.end(), [](const Absent& absent) { return absent.is_unlogged; })) return;
  AbsentGradients unlogged;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    if (named_[i]) continue;
    std::vector<int64_t> replicas = replicas_without(i);
    if (replicas.empty()) continue;
    named_[i] = 1;
    if (present(i)) {
      unlogged.on_some.push_back({variables_[i]->name(), std::move(replicas)});
    } else {
      unlogged.on_all.push_back(variables_[i]->name());
    }
  }
  log_absent_gradients(unlogged, variables_.front()->group()->step());
}

std::vector<int64_t> GradientTable::replicas_without(std::size_t i) const {
  std::vector<int64_t> replicas;
  for (int64_t r = 0; r < replicas_; ++r) {
    if (has_[slot(i, r)]) continue;
    if (absent_[r].had_empty_part || !variables_[i]->component(r).requires_grad()) continue;
    replicas.push_back(variables_[i]->group()->first_replica() + r);
  }
  return replicas;
}

void GradientTable::check_frozen() const {
  const auto differs = [&](const Absent& absent) { return absent.frozen != absent_.front().frozen; };
  if (std::none_of(absent_.begin(), absent_.end(), differs)) return;
  for (const auto& variable : variables_) {
    const bool first = variable->component(0).requires_grad();
    for (int64_t r = 1; r < replicas_; ++r) {
      if (variable->component(r).requires_grad() == first) continue;
      const int64_t first_replica = variable->group()->first_replica();
      throw UsageError("LS-FROZEN-UNLIKE",
                       fmt::format("variable '{}' is frozen on replica {} and not on replica {}", variable->name(),
                                   first_replica + (first ? r : 0), first_replica + (first ? 0 : r)),
                       "call requires_grad_() with the same value on all replicas");
    }
  }
}

at::Tensor GradientTable::tensor_of(const Leaf& leaf, std::size_t i) const {
  if (const Factors* factors = leaf.factors()) return factors->product();
  const at::Tensor& like = variables_[i]->numbers();
  return at::from_blob(const_cast<void*>(leaf.memory()), like.sizes(), like.strides(), like.options());
}

void GradientTable::begin_exchange(int64_t replicas) {
  reduced_.assign(variables_.size(), at::Tensor());
  exchanged_.assign(variables_.size() * static_cast<std::size_t>(replicas), Leaf());
}

void GradientTable::end_exchange() {
  reduced_.clear();
  exchanged_.clear();
}

at::Tensor GradientTable::sum(std::size_t i, const ReplicaGroup& group, at::ScalarType type) const {
  const bool absent_is_nothing = group.num_workers() > 1 && group.reducer().in_tree_order();
  std::vector<at::Tensor> values;
  for (int64_t r = 0; r < replicas_; ++r) {
    const Leaf& own = leaves_[slot(i, r)];
    if (own.present()) {
      values.push_back(tensor_of(own, i).to(type));
    } else {
      values.push_back(absent_is_nothing ? at::Tensor() : at::zeros_like(variables_[i]->numbers(), type));
    }
  }
  const at::Tensor total = group.reduce(Reduction::kSum, values);
  return total.defined() ? total.to(type) : at::zeros_like(variables_[i]->numbers(), type);
}

void GradientTable::reduce(std::size_t i, const ReplicaGroup& group) {
  if (!present(i)) return;
  const at::NoGradGuard no_grad;
  const at::Tensor& like = variables_[i]->numbers();
  const at::ScalarType own = like.scalar_type();
  const at::ScalarType type = group.reducer().in_tree_order() ? accumulation_type_of(own) : own;
  reduced_[i] = sum(i, group, type);
  if (reduced_[i].strides() != like.strides())
    reduced_[i] = at::empty_strided(like.sizes(), like.strides(), like.options().dtype(type)).copy_(reduced_[i]);
  set_leaf(i, 0, Leaf(address_of(reduced_[i])));
}

}  // namespace lockstep::internal::gradient
