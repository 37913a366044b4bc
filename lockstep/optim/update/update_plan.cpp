#include "lockstep/optim/update/update_plan.h"

#include <utility>

namespace lockstep::internal::inline optim {

namespace {

BlockShares shares_of(const std::vector<PlannedTarget>& targets, int lanes) {
  std::vector<VariableExtent> extents;
  for (const PlannedTarget& target : targets) extents.push_back({target.bytes, target.together});
  return {extents, lanes};
}

}  // namespace

UpdatePlan::UpdatePlan(std::vector<PlannedTarget> targets, ReplicaRange replicas, LaneRange lanes)
    : targets_(std::move(targets)), replicas_(replicas), lanes_(lanes), shares_(shares_of(targets_, lanes.all)) {
  for (std::size_t i = 0; i < targets_.size(); ++i) targets_[i].first_block = shares_.first_block(i);
}

}  // namespace lockstep::internal::optim
