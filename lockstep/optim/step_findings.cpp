// What a step tells the list of findings: losses that were not scaled, and gradients that were changed by hand.
#include <fmt/format.h>

#include <algorithm>

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

}  // namespace lockstep::internal
