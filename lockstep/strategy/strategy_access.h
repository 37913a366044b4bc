// What the folders above need of a strategy beyond its public members.
#pragma once

#include <memory>

#include "lockstep/replica/replica_group.h"
#include "lockstep/strategy/state_items.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/variable/registry.h"

namespace lockstep::internal {

struct StrategyAccess {
  static const ReplicaGroup& group(const Strategy& strategy) { return *strategy.group_; }
  static Findings& findings(const Strategy& strategy) { return strategy.group_->findings(); }
  static Rounds& rounds(const Strategy& strategy) { return strategy.group_->rounds(); }
  static VariableRegistry& registry(const Strategy& strategy) { return *strategy.registry_; }
};

/// A variable as an item of a run's state.
StateItem item_of(const std::shared_ptr<VariableState>& variable);

}  // namespace lockstep::internal
