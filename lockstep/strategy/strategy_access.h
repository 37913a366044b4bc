// Gives the layers above what a strategy knows beyond its public members.
#pragma once

#include "lockstep/replica/replica_group.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal {

struct StrategyAccess {
  static Rounds& rounds(const Strategy& strategy) { return strategy.group_->rounds(); }
};

}  // namespace lockstep::internal
