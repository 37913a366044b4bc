// What a step finds: losses that were not scaled, gradients that were changed by hand, and gradients that are not
// finite.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/blocks.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal {

void OptimizerState::report_findings(const StepOptions& options) {
  if (group_->num_replicas() == 1) return;
  if (!options.loss_scaled_by_hand) {
    report_unweighed_losses();
    report_losses_that_add_up();
  }
  if (options.gradients_changed_on_purpose || local_) return;
  for (std::size_t r = 0; r < replicas_.size(); ++r) {
    if (!replicas_[r].changed) continue;
    group_->findings().add("LS-GRADIENT-CHANGED", name_, group_->step(), [&] {
      return fmt::format(
          "step {}: the gradient of variable '{}' was changed or replaced on replica {} between backward and {}.step, "
          "where it is this replica's part of the sum alone; to clip write optimizer.step(ctx, {{.clip_global_norm = "
          "norm}}) instead of clip_grad_norm_, or say StepOptions{{.gradients_changed_on_purpose = true}}",
          group_->step(), variables_[*replicas_[r].changed]->name(), group_->first_replica() + static_cast<int64_t>(r),
          name_);
    });
    break;
  }
}

void OptimizerState::report_missing_schedules() {
  std::vector<std::size_t> groups;
  for (std::size_t g = 0; g < schedules_.size(); ++g) {
    if (std::exchange(schedules_[g].is_missing, false)) groups.push_back(g);
  }
  if (groups.empty()) return;
  group_->findings().add("LS-SCHEDULE-MISSING", name_, group_->step(), [&] {
    return fmt::format(
        "step {}: '{}' goes on from a state in which a schedule gave the learning rate of group{} {}, and none was set "
        "here, so that the rate stays {} from now on; a state has no schedules: call {}.set_schedule(schedule) before "
        "the first step, or set_learning_rate, which says that the rate is meant",
        group_->step(), name_, groups.size() == 1 ? "" : "s", fmt::join(groups, ", "),
        rules_[groups.front()]->learning_rate(), name_);
  });
}

void OptimizerState::report_unweighed_losses() {
  const auto is_unweighed = [](const OfReplica& replica) { return replica.unweighed.has_value(); };
  // Where one replica alone has gradients, nothing is added to them.
  const auto enough = std::min<std::ptrdiff_t>(2, static_cast<std::ptrdiff_t>(replicas_.size()));
  if (std::ranges::count_if(replicas_, is_unweighed) < enough || watch_.any_may_be_weighed()) return;
  const std::size_t i = *std::ranges::find_if(replicas_, is_unweighed)->unweighed;
  group_->findings().add("LS-LOSS-NOT-SCALED", name_, group_->step(), [&] {
    return fmt::format(
        "step {}: no loss went through scale_loss before {}.step, so that the gradient of variable '{}' and others is "
        "the sum over {} replicas of what each alone has, probably {} times too large; give run() a Batch that each "
        "replica has its part of (strategy.split(input, target), strategy.distribute) and write "
        "ctx.scale_loss(mean_loss).backward(); where the loss has its weight already, write ctx.scale_loss(loss, 1, 1) "
        "or say StepOptions{{.loss_scaled_by_hand = true}}",
        group_->step(), name_, variables_[i]->name(), group_->num_replicas(), group_->num_replicas());
  });
}

void OptimizerState::report_losses_that_add_up() {
  const std::optional<GradientWatch::AddedUp> found = watch_.added_up();
  if (!found) return;
  group_->findings().add("LS-LOSS-NOT-SCALED", name_ + ": losses that add up", group_->step(), [&] {
    const auto text = [](const LossPass& pass) {
      const std::string_view file = pass.place.file_name();
      return fmt::format("{}:{} in step {}", file.substr(file.rfind('/') + 1), pass.place.line(), pass.step);
    };
    return fmt::format(
        "step {}: {}.step adds the gradients of several losses that each have the weight of a whole batch ({}; {}), so "
        "that their sum is as many times too large; to accumulate micro-batches write ctx.scale_loss(mean_loss, part, "
        "whole), the whole being the total over all replicas and micro-batches of the step, or "
        "ctx.scale_loss(mean_loss "
        "/ micro_batches); where the earlier gradients are not wanted, call {}.zero_grad(ctx); where the sum is meant, "
        "say StepOptions{{.loss_scaled_by_hand = true}}",
        group_->step(), name_, text(found->first), text(found->last), name_);
  });
}

std::vector<NotFinite> OptimizerState::gradients_not_finite() const {
  std::set<std::size_t> suspects;
  for (const Part& part : parts_) {
    const std::vector<std::size_t> found = part.update.variables_not_finite();
    suspects.insert(found.begin(), found.end());
    const std::vector<std::size_t> in_rows = part.rows.variables_not_finite();
    suspects.insert(in_rows.begin(), in_rows.end());
  }
  std::vector<NotFinite> found;
  for (const std::size_t i : suspects) {
    if (found.size() == kMostNotFinite) break;
    NotFinite one{i, {}, false};
    for (const int64_t r : gradients_.replicas_not_finite(i)) {
      one.replicas.push_back(static_cast<uint64_t>(group_->first_replica() + r));
    }
    // Squares overflow long before gradients do, so the gradients and the sum themselves decide.
    const auto sum_is_finite = [&] {
      if (gradients_.in_rows(i)) return parts_.front().rows.sum_is_finite(i);
      return sliced_ ? sliced_->own_sum_is_finite(gradients_, i) : gradients_.sum_is_finite(i, *group_);
    };
    one.in_sum = one.replicas.empty() && !local_ && !sum_is_finite();
    if (one.in_sum || !one.replicas.empty()) found.push_back(std::move(one));
  }
  return found;
}

std::string OptimizerState::text_of(const std::vector<NotFinite>& all) const {
  std::vector<std::string> texts;
  for (const NotFinite& one : all) {
    if (texts.size() + 1 == kMostNotFinite) {
      texts.emplace_back("and more");
      break;
    }
    const std::string& name = variables_[std::min<std::size_t>(one.variable, variables_.size() - 1)]->name();
    if (one.replicas.empty()) {
      texts.push_back(fmt::format("'{}' (in the sum over replicas)", name));
      continue;
    }
    std::vector<std::string> replicas;
    for (const uint64_t id : one.replicas) {
      const auto last = static_cast<uint64_t>(group_->num_replicas() - 1);
      const auto replica = static_cast<int64_t>(std::min(id, last));
      const int64_t worker = part_that_has(group_->num_replicas(), group_->num_workers(), replica);
      replicas.push_back(group_->num_workers() == 1 ? fmt::format("{}", replica)
                                                    : fmt::format("{} (worker {})", replica, worker));
    }
    texts.push_back(fmt::format("'{}' on replica {}", name, fmt::join(replicas, ", ")));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

void OptimizerState::check_finite(const StepOptions& options) {
  if (!options.check_finite && !options.skip_non_finite) return;
  // Workers that train locally see different gradients, and none may apply the step alone.
  const auto tell = [&](Proposal& mine) { mine.data = encode(gradients_not_finite()); };
  std::vector<std::vector<NotFinite>> found;
  for (const Proposal& one : agree_on_call(group_->rounds(), {.call = "check_finite", .step = group_->step()}, tell)) {
    found.push_back(decode_not_finite(one.data));
  }
  const std::vector<NotFinite> all = join(found);
  if (all.empty()) return;
  const std::string what = fmt::format("step {}: the gradient is not finite for {}", group_->step(), text_of(all));
  if (!options.skip_non_finite) {
    throw NonFiniteError("LS-NOT-FINITE", what + "; the step was not applied",
                         "lower the learning rate, clip the gradient, or look at the samples of this step");
  }
  group_->findings().add("LS-NOT-FINITE", name_ + ": skipped", group_->step(), [&] {
    return fmt::format("{}; {}.step was skipped, as StepOptions::skip_non_finite asks", what, name_);
  });
  skip_update();
}

void OptimizerState::look_at_gradients(int lane) noexcept try {
  if (is_skipped_) return;
  const LanePlan& plan = group_->plan();
  const Part* looked_at = nullptr;
  std::vector<std::size_t> suspects;
  for (int64_t k = 0; k < plan.num_replicas_of(lane); ++k) {
    const int64_t r = plan.first_replica_of(lane) + k;
    const Part& part = parts_[local_ ? static_cast<std::size_t>(r) : 0];
    if (std::exchange(looked_at, &part) != &part) {
      suspects.clear();
      if (!std::isfinite(part.update.sum_of_squares())) suspects = part.update.variables_not_finite();
    }
    std::vector<std::size_t>& found = replicas_[static_cast<std::size_t>(r)].not_finite;
    for (const std::size_t i : suspects) {
      if (found.size() == (found_not_finite_ ? 1 : kMostNotFinite)) break;
      if (!gradients_.is_finite(i, r)) found.push_back(i);
    }
  }
} catch (...) {  // without memory nothing is noted
}

void OptimizerState::report_not_finite() {
  if (is_skipped_) return;
  const auto is_suspect = [](const Part& part) { return !std::isfinite(part.info.global_norm); };
  if (std::ranges::none_of(parts_, is_suspect)) return;
  std::vector<std::vector<NotFinite>> found(1);
  for (std::size_t r = 0; r < replicas_.size(); ++r) {
    const auto id = static_cast<uint64_t>(group_->first_replica() + static_cast<int64_t>(r));
    for (const std::size_t i : std::exchange(replicas_[r].not_finite, {})) found.push_back({{i, {id}, false}});
  }
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const Part& part = parts_[p];
    for (const std::size_t i : part.rows.variables_not_finite()) {
      for (const std::size_t r : part.rows.replicas_not_finite(i)) {
        const int64_t first = row_exchange_ ? 0 : group_->first_replica().value();
        found.push_back({{i, {static_cast<uint64_t>(first) + r + (local_ ? p : 0)}, false}});
      }
    }
  }
  // A sum that is not finite, of gradients that are, or of another worker's, leaves weights that are not. Squares alone
  // overflow much earlier.
  if (std::ranges::all_of(found, [](const auto& one) { return one.empty(); }) && !local_) {
    const at::NoGradGuard no_grad;
    for (const std::size_t i : parts_.front().update.variables_not_finite()) {
      if (!at::isfinite(variables_[i]->memory(0)).all().item<bool>()) found.push_back({{i, {}, true}});
      if (found.size() > kMostNotFinite) break;
    }
  }
  const std::vector<NotFinite> all = join(found);
  if (all.empty()) return;
  found_not_finite_ = true;
  const bool is_elsewhere = all.front().in_sum && group_->num_workers() > 1;
  group_->findings().add("LS-NOT-FINITE", name_, group_->step(), [&] {
    return fmt::format(
        "step {}: the gradient is not finite for {}{}, and {}.step was applied with it; look at the samples of this "
        "step, "
        "lower the learning rate or clip the gradient; StepOptions{{.check_finite = true}} makes an error of such a "
        "step, {{.skip_non_finite = true}} leaves it out",
        group_->step(), text_of(all), is_elsewhere ? ", while this worker's replicas brought finite ones" : "", name_);
  });
}

void OptimizerState::skip_update() {
  for (Part& part : parts_) {
    part.info.global_norm = part.factor * part.global_norm();
    part.rows.skip();
    for (std::size_t i = 0; i < variables_.size(); ++i) part.update.set_coefficients(i, nullptr);
  }
  is_skipped_ = true;
}

}  // namespace lockstep::internal
