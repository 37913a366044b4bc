#include "lockstep/train/step/step_gradients.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>

namespace lockstep::internal::inline train {

namespace {

constexpr int64_t kMostElements = int64_t{1} << 26;  // more are a table, whose gradient has few rows

}  // namespace

StepGradients::StepGradients(const Strategy& strategy, const std::vector<Variable>& variables) : strategy_(strategy) {
  for (const Variable& variable : variables) {
    if (variable.trainable() && c10::multiply_integers(variable.sizes()) <= kMostElements)
      variables_.push_back(variable);
  }
  if (!variables_.empty()) kept_ = strategy.per_replica([](ReplicaId) { return std::vector<at::Tensor>(); });
}

void StepGradients::keep(const ReplicaContext& ctx) {
  if (!kept_) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor>& mine = (*kept_)[ctx.replica_id()];
  for (const Variable& variable : variables_) {
    const at::Tensor value = variable.value(ctx);
    const at::Tensor& gradient = value.grad();
    mine.push_back(!gradient.defined()    ? at::zeros_like(value)
                   : gradient.is_sparse() ? gradient.to_dense()
                                          : gradient.clone());
  }
}

std::vector<std::pair<std::string, at::Tensor>> StepGradients::sums() const {
  std::vector<std::pair<std::string, at::Tensor>> sums;
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    const auto parts = strategy_.per_replica([&](ReplicaId r) { return (*kept_)[r][i]; });
    sums.emplace_back(variables_[i].name(), strategy_.reduce(Reduction::kSum, parts));
  }
  return sums;
}

}  // namespace lockstep::internal::train
