#include "lockstep/train/step/rounded_updates.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <span>
#include <string>
#include <utility>

#include "lockstep/core/counted.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/linear/factored_tensor.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/strategy/strategy_access.h"

namespace lockstep::internal::inline train {

namespace {

constexpr int64_t kElements = 1024;  // of each variable
/// Looks at float32 weights: later on, a model that has learned all may well have updates that are too small.
constexpr int64_t kLooksAtFloats = 2;

template <class T>
std::vector<double> first_of(const at::Tensor& all) {
  const std::span<const T> numbers = host_numbers<T>(all);
  return {numbers.begin(), numbers.begin() + std::min(all.numel(), kElements)};
}

/// The first elements, which float64 holds exactly. Memory of the host is read without an operator: a look is part of a
/// step, and the code of a few operators that no other step calls would cost it more than the elements do.
std::vector<double> some_of(const at::Tensor& all) {
  if (all.is_cpu() && all.is_contiguous()) {
    switch (all.scalar_type()) {
      case at::kFloat: return first_of<float>(all);
      case at::kBFloat16: return first_of<c10::BFloat16>(all);
      case at::kHalf: return first_of<c10::Half>(all);
      default: break;
    }
  }
  const at::Tensor real = all.is_complex() ? at::view_as_real(all.detach()) : all.detach();
  const at::Tensor flat = real.flatten();
  return first_of<double>(flat.narrow(0, 0, std::min(flat.size(0), kElements)).to(at::kCPU, at::kDouble).contiguous());
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
    seen_.push_back({i, some_of(value), some_of(gradient)});
  }
}

void RoundedUpdates::compare(const ReplicaContext& ctx) {
  std::string worst;
  double most = 0.5;
  int64_t others = -1;
  for (const Seen& one : seen_) {
    const Variable& variable = variables_[one.variable];
    const at::Tensor value = variable.value(ctx);
    const std::vector<double> now = some_of(value);
    int64_t all = 0;
    int64_t same = 0;
    for (std::size_t e = 0; e < std::min(now.size(), one.gradients.size()); ++e) {
      if (one.gradients[e] == 0) continue;
      ++all;
      if (now[e] == one.values[e]) ++same;
    }
    if (all == 0) continue;
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
