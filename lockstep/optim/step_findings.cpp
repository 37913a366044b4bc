#include "lockstep/optim/step_findings.h"

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
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline optim {

StepFindings::StepFindings(UpdateWork& work)
    : work_(work),
      watch_(work.variables, work.group->num_local_replicas(), work.group->num_replicas() > 1),
      replicas_(static_cast<std::size_t>(work.group->num_local_replicas())) {
  for (std::size_t r = 0; r < replicas_.size(); ++r) {
    // Earlier losses do not concern this optimizer, unless their gradients are already there.
    const auto local = static_cast<int64_t>(r);
    const bool waiting = std::ranges::any_of(work_.variables, [&](const auto& variable) {
      return variable->component(local).unsafeGetTensorImpl()->grad().defined();
    });
    if (!waiting) replicas_[r].consumed = ContextAccess::scaled_backwards(work_.group->context(local));
  }
}

void StepFindings::collect(const ReplicaContext& context, int64_t r) {
  OfReplica& replica = replicas_[static_cast<std::size_t>(r)];
  const ScaledBackwards backwards = ContextAccess::scaled_backwards_since(context, replica.consumed);
  const bool is_empty = ContextAccess::has_empty_part(context);
  work_.gradients.collect(r, backwards.weightless(), backwards.had_empty_part() || is_empty);
  replica.changed = watch_.changed(r);
  replica.unweighed = is_empty ? std::nullopt : watch_.unweighed(r);  // a replica without samples may have no loss
  replica.consumed = ContextAccess::scaled_backwards(context);
  replica.drops_next = std::exchange(replica.dropped, false);
}

void StepFindings::drop(const ReplicaContext& context, int64_t r) {
  watch_.forget(r);
  OfReplica& replica = replicas_[static_cast<std::size_t>(r)];
  replica.consumed = ContextAccess::scaled_backwards(context);
  replica.dropped = true;
  replica.drops_next = false;
}

void StepFindings::forget_run() noexcept {
  for (std::size_t r = 0; r < replicas_.size(); ++r) watch_.forget(static_cast<int64_t>(r));
}

bool StepFindings::drops_next() const {
  return std::ranges::all_of(replicas_, [](const OfReplica& replica) { return replica.drops_next; });
}

void StepFindings::report(const StepOptions& options) {
  if (work_.group->num_replicas() == 1) return;
  if (!options.loss_scaled_by_hand) {
    report_unweighed_losses();
    report_losses_that_add_up();
  }
  if (options.gradients_changed_on_purpose || work_.local) return;
  for (std::size_t r = 0; r < replicas_.size(); ++r) {
    if (!replicas_[r].changed) continue;
    work_.group->findings().add("LS-GRADIENT-CHANGED", work_.name, work_.group->step(), [&] {
      return fmt::format(
          "step {}: the gradient of variable '{}' was changed or replaced on replica {} between backward and {}.step, "
          "where it is this replica's part of the sum alone; to clip write optimizer.step(ctx, {{.clip_global_norm = "
          "norm}}) instead of clip_grad_norm_, or say StepOptions{{.gradients_changed_on_purpose = true}}",
          work_.group->step(), work_.variables[*replicas_[r].changed]->name(),
          work_.group->first_replica() + static_cast<int64_t>(r), work_.name);
    });
    break;
  }
}

void StepFindings::report_unweighed_losses() {
  const auto is_unweighed = [](const OfReplica& replica) { return replica.unweighed.has_value(); };
  // Where one replica alone has gradients, nothing is added to them.
  const auto enough = std::min<std::ptrdiff_t>(2, static_cast<std::ptrdiff_t>(replicas_.size()));
  if (std::ranges::count_if(replicas_, is_unweighed) < enough || watch_.any_may_be_weighed()) return;
  const std::size_t i = *std::ranges::find_if(replicas_, is_unweighed)->unweighed;
  work_.group->findings().add("LS-LOSS-NOT-SCALED", work_.name, work_.group->step(), [&] {
    return fmt::format(
        "step {}: no loss went through scale_loss before {}.step, so that the gradient of variable '{}' and others is "
        "the sum over {} replicas of what each alone has, probably {} times too large; give run() a Batch that each "
        "replica has its part of (strategy.split(input, target), strategy.distribute) and write "
        "ctx.scale_loss(mean_loss).backward(); where the loss has its weight already, write ctx.scale_loss(loss, 1, 1) "
        "or say StepOptions{{.loss_scaled_by_hand = true}}",
        work_.group->step(), work_.name, work_.variables[i]->name(), work_.group->num_replicas(),
        work_.group->num_replicas());
  });
}

void StepFindings::report_losses_that_add_up() {
  const std::optional<GradientWatch::AddedUp> found = watch_.added_up();
  if (!found) return;
  work_.group->findings().add("LS-LOSS-NOT-SCALED", work_.name + ": losses that add up", work_.group->step(), [&] {
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
        work_.group->step(), work_.name, text(found->first), text(found->last), work_.name);
  });
}

std::vector<NotFinite> StepFindings::gradients_not_finite(const Form& form) const {
  std::set<std::size_t> suspects;
  for (const UpdatePart& part : work_.parts) {
    const std::vector<std::size_t> found = part.update.variables_not_finite();
    suspects.insert(found.begin(), found.end());
    const std::vector<std::size_t> in_rows = part.rows.variables_not_finite();
    suspects.insert(in_rows.begin(), in_rows.end());
  }
  std::vector<NotFinite> found;
  for (const std::size_t i : suspects) {
    if (found.size() == kMostNotFinite) break;
    NotFinite one{i, {}, false};
    for (const int64_t r : work_.gradients.replicas_not_finite(i)) {
      one.replicas.push_back(static_cast<uint64_t>(work_.group->first_replica() + r));
    }
    // Squares overflow long before gradients do, so the gradients and the sum themselves decide.
    const auto sum_is_finite = [&] {
      if (work_.gradients.in_rows(i)) return work_.parts.front().rows.sum_is_finite(i);
      return form.sum_is_finite(i);
    };
    one.in_sum = one.replicas.empty() && !work_.local && !sum_is_finite();
    if (one.in_sum || !one.replicas.empty()) found.push_back(std::move(one));
  }
  return found;
}

std::string StepFindings::text_of(const std::vector<NotFinite>& all) const {
  std::vector<std::string> texts;
  for (const NotFinite& one : all) {
    if (texts.size() + 1 == kMostNotFinite) {
      texts.emplace_back("and more");
      break;
    }
    const std::string& name = work_.variables[std::min<std::size_t>(one.variable, work_.variables.size() - 1)]->name();
    if (one.replicas.empty()) {
      texts.push_back(fmt::format("'{}' (in the sum over replicas)", name));
      continue;
    }
    std::vector<std::string> replicas;
    for (const uint64_t id : one.replicas) {
      const auto last = static_cast<uint64_t>(work_.group->num_replicas() - 1);
      const auto replica = static_cast<int64_t>(std::min(id, last));
      const int64_t worker = part_that_has(work_.group->num_replicas(), work_.group->num_workers(), replica);
      replicas.push_back(work_.group->num_workers() == 1 ? fmt::format("{}", replica)
                                                         : fmt::format("{} (worker {})", replica, worker));
    }
    texts.push_back(fmt::format("'{}' on replica {}", name, fmt::join(replicas, ", ")));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

void StepFindings::check_finite(const StepOptions& options, const Form& form) {
  if (!options.check_finite && !options.skip_non_finite) return;
  // Workers that train locally see different gradients, and none may apply the step alone.
  const auto tell = [&](Proposal& mine) { mine.data = encode(gradients_not_finite(form)); };
  std::vector<std::vector<NotFinite>> found;
  for (const Proposal& one :
       agree_on_call(work_.group->rounds(), {.call = "check_finite", .step = work_.group->step()}, tell)) {
    found.push_back(decode_not_finite(one.data));
  }
  const std::vector<NotFinite> all = join(found);
  if (all.empty()) return;
  const std::string what = fmt::format("step {}: the gradient is not finite for {}", work_.group->step(), text_of(all));
  if (!options.skip_non_finite) {
    throw NonFiniteError("LS-NOT-FINITE", what + "; the step was not applied",
                         "lower the learning rate, clip the gradient, or look at the samples of this step");
  }
  work_.group->findings().add("LS-NOT-FINITE", work_.name + ": skipped", work_.group->step(), [&] {
    return fmt::format("{}; {}.step was skipped, as StepOptions::skip_non_finite asks", what, work_.name);
  });
  skip_update();
}

void StepFindings::look_at_gradients(int lane) noexcept try {
  if (work_.is_skipped) return;
  const LanePlan& plan = work_.group->plan();
  const UpdatePart* looked_at = nullptr;
  std::vector<std::size_t> suspects;
  for (int64_t k = 0; k < plan.num_replicas_of(lane); ++k) {
    const int64_t r = plan.first_replica_of(lane) + k;
    const UpdatePart& part = work_.parts[work_.local ? static_cast<std::size_t>(r) : 0];
    if (std::exchange(looked_at, &part) != &part) {
      suspects.clear();
      if (!std::isfinite(part.update.sum_of_squares())) suspects = part.update.variables_not_finite();
    }
    std::vector<std::size_t>& found = replicas_[static_cast<std::size_t>(r)].not_finite;
    for (const std::size_t i : suspects) {
      if (found.size() == (found_not_finite_ ? 1 : kMostNotFinite)) break;
      if (!work_.gradients.is_finite(i, r)) found.push_back(i);
    }
  }
} catch (...) {  // without memory nothing is noted
}

void StepFindings::report_not_finite() {
  if (work_.is_skipped) return;
  const auto is_suspect = [](const UpdatePart& part) { return !std::isfinite(part.info.global_norm); };
  if (std::ranges::none_of(work_.parts, is_suspect)) return;
  std::vector<std::vector<NotFinite>> found(1);
  for (std::size_t r = 0; r < replicas_.size(); ++r) {
    const auto id = static_cast<uint64_t>(work_.group->first_replica() + static_cast<int64_t>(r));
    for (const std::size_t i : std::exchange(replicas_[r].not_finite, {})) found.push_back({{i, {id}, false}});
  }
  for (std::size_t p = 0; p < work_.parts.size(); ++p) {
    const UpdatePart& part = work_.parts[p];
    for (const std::size_t i : part.rows.variables_not_finite()) {
      for (const std::size_t r : part.rows.replicas_not_finite(i)) {
        const int64_t first = work_.row_exchange ? 0 : work_.group->first_replica().value();
        found.push_back({{i, {static_cast<uint64_t>(first) + r + (work_.local ? p : 0)}, false}});
      }
    }
  }
  // A sum that is not finite, of gradients that are, or of another worker's, leaves weights that are not. Squares alone
  // overflow much earlier.
  if (std::ranges::all_of(found, [](const auto& one) { return one.empty(); }) && !work_.local) {
    const at::NoGradGuard no_grad;
    for (const std::size_t i : work_.parts.front().update.variables_not_finite()) {
      if (!at::isfinite(work_.variables[i]->memory(0)).all().item<bool>()) found.push_back({{i, {}, true}});
      if (found.size() > kMostNotFinite) break;
    }
  }
  const std::vector<NotFinite> all = join(found);
  if (all.empty()) return;
  found_not_finite_ = true;
  const bool is_elsewhere = all.front().in_sum && work_.group->num_workers() > 1;
  work_.group->findings().add("LS-NOT-FINITE", work_.name, work_.group->step(), [&] {
    return fmt::format(
        "step {}: the gradient is not finite for {}{}, and {}.step was applied with it; look at the samples of this "
        "step, "
        "lower the learning rate or clip the gradient; StepOptions{{.check_finite = true}} makes an error of such a "
        "step, {{.skip_non_finite = true}} leaves it out",
        work_.group->step(), text_of(all), is_elsewhere ? ", while this worker's replicas brought finite ones" : "",
        work_.name);
  });
}

void StepFindings::skip_update() {
  for (UpdatePart& part : work_.parts) {
    part.info.global_norm = part.factor * part.global_norm();
    part.rows.skip();
    for (std::size_t i = 0; i < work_.variables.size(); ++i) part.update.set_coefficients(i, nullptr);
  }
  work_.is_skipped = true;
}

}  // namespace lockstep::internal::optim
