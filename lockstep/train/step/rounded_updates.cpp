#include "lockstep/train/step/rounded_updates.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "lockstep/core/counted.h"
#include "lockstep/linear/factored_tensor.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/strategy/strategy_access.h"

namespace lockstep::internal::inline train {

namespace {

constexpr int64_t kElements = 1024;  // of each variable
/// Looks at float32 weights: later on, a model that has learned all may well have updates that are too small.
constexpr int64_t kLooksAtFloats = 2;

at::Tensor some_of(const at::Tensor& all) {
  const at::Tensor flat = all.detach().flatten();
  return flat.narrow(0, 0, std::min(flat.size(0), kElements));
}

}  // namespace

RoundedUpdates::RoundedUpdates(Strategy& strategy, Optimizer optimizer, const std::vector<Variable>& variables)
    : strategy_(strategy), optimizer_(std::move(optimizer)), variables_(variables) {}

bool RoundedUpdates::looks_at(int64_t step) const {
  const auto is_first = [](int64_t one) {
    const auto number = static_cast<uint64_t>(one) + 1;
    return one > 0 && std::has_single_bit(number) && std::countr_zero(number) % 3 == 0;
  };
  if (!is_first(step) && !is_first(step - 1)) return false;
  for (int64_t group = 0; group < optimizer_.num_groups(); ++group) {
    if (!(optimizer_.learning_rate(group) > 0)) return false;
  }
  return true;
}

void RoundedUpdates::look(const ReplicaContext& ctx) {
  const at::NoGradGuard no_grad;
  if (!seen_.empty() && seen_in_ + 1 == ctx.step()) {
    compare(ctx);
    seen_.clear();
    return;
  }
  seen_.clear();
  remember(ctx);
}

void RoundedUpdates::remember(const ReplicaContext& ctx) {
  ++looks_;
  seen_in_ = ctx.step();
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    const auto& updated = optimizer_.shared_state().variables();
    const auto is_this = [&](const auto& one) { return one.get() == &variables_[i].state(); };
    if (!variables_[i].trainable() || std::ranges::none_of(updated, is_this)) continue;
    const at::Tensor value = variables_[i].value(ctx);
    if (value.scalar_type() == at::kDouble || (value.scalar_type() == at::kFloat && looks_ > kLooksAtFloats)) continue;
    const at::Tensor& gradient = value.grad();
    // A gradient that is kept as factors stays what it is.
    if (!gradient.defined() || gradient.is_sparse() || factors_of(gradient)) continue;
    seen_.push_back({i, some_of(value).clone(), some_of(gradient).ne(0)});
  }
}

void RoundedUpdates::compare(const ReplicaContext& ctx) {
  std::string worst;
  double most = 0.5;
  int64_t others = -1;
  for (const Seen& one : seen_) {
    const Variable& variable = variables_[one.variable];
    const auto all = one.has_gradient.sum().item<int64_t>();
    if (all == 0) continue;
    const at::Tensor value = variable.value(ctx);
    const auto same = some_of(value).eq(one.values).logical_and(one.has_gradient).sum().item<int64_t>();
    const double share = static_cast<double>(same) / static_cast<double>(all);
    if (share <= 0.5) continue;
    ++others;
    if (share <= most) continue;
    most = share;
    worst = fmt::format("'{}' ({})", variable.name(), c10::toString(value.scalar_type()));
  }
  if (worst.empty()) return;
  StrategyAccess::findings(strategy_).add("LS-UPDATES-ROUNDED", "updates", seen_in_, [&] {
    return fmt::format(
        "step {}: of the elements that were looked at and have a gradient, the update left {:.0f} % of {}{} as they "
        "were, because it is smaller than what their type tells apart; raise the learning rate, or keep weights in "
        "float32 and compute by Precision::kBFloat16",
        seen_in_, 100 * most, worst,
        others > 0 ? fmt::format(", and most of {}", counted(others, "other variable")) : "");
  });
}

}  // namespace lockstep::internal::train
