#include "lockstep/linear/factored_weights.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "lockstep/core/torch_compat.h"
#include "lockstep/linear/factored_tensor.h"
#include "lockstep/linear/plain_tensor.h"
#include "lockstep/linear/product_order.h"
#include "lockstep/reduce/factors.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline linear {

namespace {

/// The weights whose gradients may stay factors, of all optimizers of the process.
struct Weights {
  struct Weight {
    int users = 0;  // optimizers, and replicas that share a component
    std::shared_ptr<VariableState> variable;
    int64_t most_samples = 0;  // of a product that may stay factors
  };
  std::atomic<int64_t> fewest_elements = kNone;  // of all weights; read without the mutex
  std::shared_mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Weight> by_component;  // guarded by mutex

  static constexpr int64_t kNone = INT64_MAX;
  /// With the mutex held.
  void count() {
    int64_t fewest = kNone;
    for (const auto& [component, weight] : by_component) fewest = std::min(fewest, component->numel());
    fewest_elements = fewest;
  }
};

Weights& weights() {
  static auto* const all = new Weights;  // never destroyed: replicas of static strategies may still run
  return *all;
}

Weights::Weight weight_with(const at::Tensor& component) {
  Weights& all = weights();
  const std::shared_lock<std::shared_mutex> lock(all.mutex);
  const auto found = all.by_component.find(component.unsafeGetTensorImpl());
  return found == all.by_component.end() ? Weights::Weight() : found->second;
}

thread_local const at::Tensor* weight_of_thread = nullptr;  // of a WeightOfProductScope

/// The weight whose gradient the product `left` times `right` is; without a variable where it cannot stay factors.
Weights::Weight weight_of(const at::Tensor& left, const at::Tensor& right) {
  const at::Tensor weight = weight_of_thread ? *weight_of_thread : weight_of_running_product();
  if (!weight.defined() || weight.dim() != 2) return {};
  if (weight.size(0) != left.size(0) || weight.size(1) != right.size(1)) return {};
  return weight_with(weight);
}

GradientForm form_of(const VariableState& variable, Factoring factoring) {
  const at::Tensor& like = variable.like();
  const ReplicaGroup& group = *variable.group();
  const int64_t fewest = factoring == Factoring::kAlways ? 1 : FactoredWeights::kFewestElements;
  if (like.scalar_type() != at::kFloat || like.dim() != 2 || !like.is_contiguous()) return GradientForm::kOrdinary;
  if (like.numel() < fewest) return GradientForm::kOrdinary;
  if (factoring == Factoring::kOff) return GradientForm::kSwitchedOff;
  if (!kTellsRunningNode) return GradientForm::kUnknownNode;
  if (!Factors::available()) return GradientForm::kNoMultiplyAdd;
  if (variable.is_trained_locally()) return GradientForm::kLocal;
  if (!group.reducer().in_tree_order()) return GradientForm::kReduced;
  return like.size(1) > FactoredWeights::kMostColumns ? GradientForm::kLongRows : GradientForm::kNoProduct;
}

}  // namespace

WeightOfProductScope::WeightOfProductScope(const at::Tensor& weight)
    : outer_(std::exchange(weight_of_thread, &weight)) {}

WeightOfProductScope::~WeightOfProductScope() { weight_of_thread = outer_; }

bool may_stay_factors(const at::Tensor& left, const at::Tensor& right) {
  if (at::GradMode::is_enabled() || left.dim() != 2 || right.dim() != 2 || !is_plain_float(left) ||
      !is_plain_float(right))
    return false;
  // Under autocast the operands are still to be cast.
  if (!c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutocastCPU)) return false;
  const int64_t samples = left.size(1);
  if (samples < 1 || samples != right.size(0)) return false;
  if (left.size(0) * right.size(1) < weights().fewest_elements.load(std::memory_order_relaxed)) return false;
  // The only layouts in which LibTorch's backward computes such gradients, and in which their order is compared.
  // A dimension of size 1 may have any stride, which changes the product that LibTorch asks for.
  return left.stride(0) == 1 && left.stride(1) == left.size(0) && right.stride(0) == right.size(1) &&
         right.stride(1) == 1;
}

at::Tensor factored_gradient(const at::Tensor& left, const at::Tensor& right) {
  if (!may_stay_factors(left, right)) return {};
  const Weights::Weight weight = weight_of(left, right);
  const std::shared_ptr<VariableState>& variable = weight.variable;
  if (!variable) return {};
  const int64_t samples = left.size(1);
  if (samples > weight.most_samples) {
    variable->set_gradient_form(GradientForm::kManySamples);
    return {};
  }
  const std::optional<ZeroSums> zero_sums = zero_sums_of_libtorch(samples, left.size(0), right.size(1));
  if (!zero_sums) {
    variable->set_gradient_form(GradientForm::kOtherBits);
    return {};
  }
  variable->set_gradient_form(GradientForm::kFactors);
  return make_factored(std::make_shared<const Factors>(left.t(), right, *zero_sums), variable);
}

FactoredWeights::FactoredWeights(const std::vector<std::shared_ptr<VariableState>>& variables, Factoring factoring) {
  for (const auto& variable : variables) {
    const GradientForm form = form_of(*variable, factoring);
    variable->set_gradient_form(form);
    if (form == GradientForm::kNoProduct) variables_.push_back(variable);
  }
  if (variables_.empty()) return;
  register_factored_tensors();
  Weights& all = weights();
  const std::unique_lock<std::shared_mutex> lock(all.mutex);
  for (const auto& variable : variables_) {
    for (int64_t r = 0; r < variable->num_components(); ++r) {
      Weights::Weight& weight = all.by_component[variable->component(r).unsafeGetTensorImpl()];
      ++weight.users;
      weight.variable = variable;
      weight.most_samples = factoring == Factoring::kAlways ? kMostSamples : most_samples(variable->like().numel());
    }
  }
  all.count();
}

FactoredWeights::~FactoredWeights() {
  if (variables_.empty()) return;
  Weights& all = weights();
  const std::unique_lock<std::shared_mutex> lock(all.mutex);
  for (const auto& variable : variables_) {
    for (int64_t r = 0; r < variable->num_components(); ++r) {
      const auto found = all.by_component.find(variable->component(r).unsafeGetTensorImpl());
      if (--found->second.users == 0) all.by_component.erase(found);
    }
  }
  all.count();
}

}  // namespace lockstep::internal::linear
