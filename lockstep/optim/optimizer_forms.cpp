// How several workers take part in an optimizer's step: they share its update, or each updates all.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/mirrored_state.h"

namespace lockstep::internal {

int64_t OptimizerState::num_leaves() const {
  return exchange_ || host_ ? group_->num_replicas() : group_->num_local_replicas();
}

void OptimizerState::decide_form() {
  if (form_is_decided_) return;
  const std::vector<UpdateTarget> targets = parts_.front().update.targets();
  host_ = HostUpdate::agree(*group_, targets, name_, host_memory_is_on_, why_not_shared_);
  form_is_decided_ = true;
  if (!host_) return;
  exchange_.reset();
  parts_.clear();
  parts_.push_back({FusedUpdate(targets, {0, num_leaves()}, host_->lanes(), host_->squares()), 1});
}

std::string OptimizerState::form() const {
  if (group_->num_workers() == 1 || local_) return {};
  if (host_) return "each worker updates a part of one copy, in memory that all workers map";
  if (!form_is_decided_) return "the first step decides whether workers share the update";
  if (!exchange_) return "every worker updates all, because sums are added by a reducer of the program's own";
  return fmt::format("every worker updates all, because {}", why_not_shared_);
}

void OptimizerState::begin_exchange(const StepOptions& options) {
  if (!local_ && !group_->reduces_in_tree_order()) gradients_.begin_exchange(num_leaves());
  if (host_) {
    std::vector<char> present(variables_.size());
    for (std::size_t i = 0; i < present.size(); ++i) present[i] = gradients_.present(i) ? 1 : 0;
    host_->begin_step(present);
    // A gradient that is not finite is looked for in all blocks.
    host_->gradients().begin_step(gradients_.on_workers(), parts_.front().update, options.check_finite);
    return;
  }
  if (exchange_) exchange_->begin_step(gradients_.on_workers());
  if (local_ || group_->num_workers() == 1) return;
  // Another optimizer of the same variables may be shared.
  for (const auto& variable : variables_) {
    if (variable->is_in_halves()) variable->as_mirrored().leave_halves();
  }
}

void OptimizerState::reduce(int lane, int num_lanes) {
  for (auto i = static_cast<std::size_t>(lane); i < variables_.size(); i += static_cast<std::size_t>(num_lanes)) {
    if (!exchange_ || !exchange_->takes(i)) gradients_.reduce(i, *group_);
  }
}

void OptimizerState::end_pack() {
  agree_on_call(group_->rounds(), {.call = "gradients of an update", .name = name_, .step = group_->step()},
                [](Proposal&) {});
  host_->gradients().set_leaves(gradients_);
}

void OptimizerState::end_measure() {
  agree_on_call(group_->rounds(), {.call = "the norm of an update", .name = name_, .step = group_->step()},
                [](Proposal&) {});
}

void OptimizerState::end_exchange() {
  exchange_->send_sums();
  exchange_->set_leaves(gradients_);
}

}  // namespace lockstep::internal
