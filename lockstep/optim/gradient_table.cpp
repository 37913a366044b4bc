#include "lockstep/optim/gradient_table.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/core/error.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/optim/absent_gradients.h"
#include "lockstep/optim/gradients_on_workers.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal {

namespace {

bool fits(const at::Tensor& gradient, const at::Tensor& like) {
  return gradient.layout() == at::kStrided && gradient.scalar_type() == like.scalar_type() &&
         gradient.sizes() == like.sizes() && gradient.device() == like.device();
}

[[noreturn]] void throw_misfit(const VariableState& variable, const at::Tensor& gradient, int64_t r) {
  const at::Tensor& like = variable.component(r);
  const int64_t replica = variable.group()->first_replica() + r;
  if (gradient.layout() != at::kStrided) {
    throw UsageError("LS-NOT-DENSE",
                     fmt::format("variable '{}' has a sparse gradient on replica {}", variable.name(), replica),
                     "make it dense, as torch::nn::EmbeddingOptions::sparse(false) does");
  }
  throw UsageError(
      "LS-GRADIENT-MISFIT",
      fmt::format("the gradient of variable '{}' on replica {} is {} [{}] on {}, the variable {} [{}] on {}",
                  variable.name(), replica, c10::toString(gradient.scalar_type()), fmt::join(gradient.sizes(), ", "),
                  gradient.device().str(), c10::toString(like.scalar_type()), fmt::join(like.sizes(), ", "),
                  like.device().str()),
      "leave .grad() to backward(), or set it in the variable's own shape, dtype and device");
}

}  // namespace

GradientTable::GradientTable(std::vector<std::shared_ptr<VariableState>> variables, int64_t replicas)
    : variables_(std::move(variables)),
      replicas_(replicas),
      pointers_(variables_.size() * static_cast<std::size_t>(replicas)),
      has_(pointers_.size()),
      converted_(static_cast<std::size_t>(replicas)),
      absent_(static_cast<std::size_t>(replicas)),
      named_(variables_.size()) {
  for (const auto& variable : variables_) components_.add(*variable);
}

void GradientTable::collect(int64_t r, bool weightless, bool had_empty_part) {
  Absent absent{.had_empty_part = had_empty_part};
  const bool all_sound = variables_.empty() || variables_.front()->counts()->damaged == 0;
  components_.for_each(OfCollect(), r, [&](std::size_t i, const Component& component) {
    if (!all_sound || !component.as_left()) variables_[i]->check_component(r);  // throws where needed
    const at::Tensor& tensor = component.tensor;
    const at::Tensor& gradient = tensor.unsafeGetTensorImpl()->grad();
    has_[slot(i, r)] = gradient.defined() ? 1 : 0;
    const void*& pointer = pointers_[slot(i, r)];
    pointer = nullptr;
    if (!gradient.defined()) {
      if (!tensor.requires_grad()) {
        absent.frozen = (absent.frozen + i + 1) * 0x9e3779b97f4a7c15u;
      } else if (!named_[i] && !had_empty_part) {
        absent.is_unlogged = true;
      }
      return;
    }
    if (!fits(gradient, tensor)) throw_misfit(*variables_[i], gradient, r);
    if (weightless) return;
    // A gradient that shares its memory, perhaps with a weight, could change while the update writes weights.
    const at::Storage& storage = gradient.unsafeGetTensorImpl()->unsafe_storage();
    const bool own_memory = storage.use_count() == 1 && storage.resizable();  // that of at::from_blob is not resizable
    if (own_memory && gradient.strides() == tensor.strides() && !gradient.is_neg()) {
      pointer = address_of(gradient);
    } else {
      const at::NoGradGuard no_grad;
      at::Tensor same_layout = at::empty_strided(tensor.sizes(), tensor.strides(), gradient.options());
      same_layout.copy_(gradient);
      pointer = address_of(same_layout);
      converted_[r].push_back(std::move(same_layout));
    }
  });
  absent_[r] = absent;
}

void GradientTable::agree_on_presence(const ReplicaGroup& group, bool across_workers) {
  if (!across_workers) return check_frozen();
  on_any_worker_ = gradients_on_any_worker(
      group, variables_, [&](std::size_t i) { return is_here(i); }, [&] { check_frozen(); });
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

at::Tensor GradientTable::tensor_at(const void* gradient, std::size_t i) const {
  const at::Tensor& like = variables_[i]->like();
  return at::from_blob(const_cast<void*>(gradient), like.sizes(), like.strides(), like.options());
}

void GradientTable::begin_reduce() {
  reduced_.assign(variables_.size(), at::Tensor());
  reduced_pointers_.assign(pointers_.size(), nullptr);
}

at::Tensor GradientTable::sum(std::size_t i, const ReplicaGroup& group, at::ScalarType type) const {
  const bool absent_is_nothing = group.num_workers() > 1 && group.reducer().in_tree_order();
  std::vector<at::Tensor> values;
  for (int64_t r = 0; r < replicas_; ++r) {
    const void* own = gradient(i, r);
    if (own) {
      values.push_back(tensor_at(own, i).to(type));
    } else {
      values.push_back(absent_is_nothing ? at::Tensor() : at::zeros_like(variables_[i]->like(), type));
    }
  }
  const at::Tensor total = group.reduce(Reduction::kSum, values);
  return total.defined() ? total.to(type) : at::zeros_like(variables_[i]->like(), type);
}

void GradientTable::reduce(std::size_t i, const ReplicaGroup& group) {
  if (!present(i)) return;
  const at::NoGradGuard no_grad;
  const at::Tensor& like = variables_[i]->like();
  reduced_[i] = sum(i, group, like.scalar_type());
  if (reduced_[i].strides() != like.strides()) {
    reduced_[i] = at::empty_strided(like.sizes(), like.strides(), like.options()).copy_(reduced_[i]);
  }
  reduced_pointers_[slot(i, 0)] = address_of(reduced_[i]);
}

std::vector<int64_t> GradientTable::replicas_not_finite(std::size_t i) const {
  std::vector<int64_t> found;
  for (int64_t r = 0; r < replicas_; ++r) {
    const void* own = gradient(i, r);
    if (own && !at::isfinite(tensor_at(own, i)).all().item<bool>()) found.push_back(r);
  }
  return found;
}

bool GradientTable::sum_is_finite(std::size_t i, const ReplicaGroup& group) const {
  const at::NoGradGuard no_grad;
  // The fused update adds half-precision gradients in float32.
  const bool wide = variables_[i]->like().scalar_type() == at::kDouble;
  const at::Tensor value = reduced_.empty() ? sum(i, group, wide ? at::kDouble : at::kFloat) : reduced_[i];
  return at::isfinite(value).all().item<bool>();
}

bool GradientTable::is_here(std::size_t i) const {
  for (int64_t r = 0; r < replicas_; ++r) {
    if (has_[slot(i, r)]) return true;
  }
  return false;
}

}  // namespace lockstep::internal
