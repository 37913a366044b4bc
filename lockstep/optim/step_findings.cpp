// What a step finds: losses that were not scaled, gradients that were changed by hand, and gradients that are not
// finite.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "lockstep/core/error.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal {

void OptimizerState::report_findings(const StepOptions& options) {
  if (group_->num_replicas() == 1) return;
  const auto present = [&](std::size_t i) { return gradients_.present(i); };
  if (!options.loss_scaled_by_hand &&
      std::all_of(replicas_.begin(), replicas_.end(), [](const OfReplica& replica) { return replica.unscaled; })) {
    for (std::size_t i = 0; i < variables_.size(); ++i) {
      if (!present(i)) continue;
      group_->findings().add("LS-LOSS-NOT-SCALED", name_, group_->step(), [&] {
        return fmt::format(
            "step {}: {} replicas were given parts of a Batch and no loss went through scale_loss before {}.step, so "
            "that the gradient of variable '{}' and others is the sum of their means; write "
            "ctx.scale_loss(mean_loss).backward(), or say StepOptions{{.loss_scaled_by_hand = true}}",
            group_->step(), group_->num_replicas(), name_, variables_[i]->name());
      });
      break;
    }
  }
  if (options.gradients_changed_on_purpose) return;
  for (std::size_t r = 0; r < replicas_.size(); ++r) {
    if (!replicas_[r].changed) continue;
    group_->findings().add("LS-GRADIENT-CHANGED", name_, group_->step(), [&] {
      return fmt::format(
          "step {}: the gradient of variable '{}' was changed on replica {} between backward and {}.step, where it is "
          "this replica's part of the sum alone; to clip write optimizer.step(ctx, {{.clip_global_norm = norm}}) "
          "instead of clip_grad_norm_, or say StepOptions{{.gradients_changed_on_purpose = true}}",
          group_->step(), variables_[*replicas_[r].changed]->name(), group_->first_replica() + static_cast<int64_t>(r),
          name_);
    });
    break;
  }
}

void OptimizerState::check_finite_gradients() const {
  std::set<std::size_t> bad;
  for (const Part& part : parts_) {
    const std::vector<std::size_t> found = part.update.variables_not_finite();
    bad.insert(found.begin(), found.end());
  }
  if (bad.empty()) return;
  std::vector<std::string> found;
  for (const std::size_t i : bad) {
    std::vector<int64_t> replicas = gradients_.replicas_not_finite(i);
    // Squares overflow long before gradients do, so the gradients and the sum themselves decide.
    if (replicas.empty() && (local_ || gradients_.sum_is_finite(i, *group_))) continue;
    for (int64_t& replica : replicas) replica += group_->first_replica();
    found.push_back(replicas.empty()
                        ? fmt::format("'{}' (in the sum over replicas)", variables_[i]->name())
                        : fmt::format("'{}' on replica {}", variables_[i]->name(), fmt::join(replicas, ", ")));
    if (found.size() == 5) break;
  }
  if (found.empty()) return;
  if (found.size() == 5) found.back() = "and more";
  throw NonFiniteError("LS-NOT-FINITE",
                       fmt::format("step {}: the gradient is not finite for {}; the step was not applied",
                                   group_->step(), fmt::join(found, ", ")),
                       "lower the learning rate, clip the gradient, or look at the samples of this step");
}

}  // namespace lockstep::internal
