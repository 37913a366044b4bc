// What makes one strategy differ from another.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/replica/lanes.h"
#include "lockstep/variable/module_binding.h"

namespace lockstep::internal {

struct StrategySetup {
  std::string name;
  LanePlan lanes;                              // where the replicas run
  CopyPolicy copies = CopyPolicy::kPerMemory;  // where a mirrored variable lives
  uint64_t seed = 0;
  int64_t verify_every = 100;
};

}  // namespace lockstep::internal
