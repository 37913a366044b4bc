// What makes one strategy differ from another: the four decisions, and the settings that all strategies have.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/comm/world.h"
#include "lockstep/core/denormals.h"
#include "lockstep/core/tuning/factored_gradients.h"
#include "lockstep/core/tuning/slots.h"
#include "lockstep/core/tuning/update_form.h"
#include "lockstep/core/tuning/wire_format.h"
#include "lockstep/reduce/reducer.h"
#include "lockstep/replica/topology.h"
#include "lockstep/variable/placement.h"
#include "lockstep/variable/synchronization.h"

namespace lockstep {

/// What a user's own strategy, which derives from Strategy, gives to the constructor of Strategy. An object that is
/// left out is that of MirroredStrategy. lockstep/testing/conformance.h tests whether the result keeps what strategies
/// promise.
struct StrategySetup {
  std::string name;                                                  // "RoundRobinStrategy", as in messages and reports
  std::shared_ptr<const Topology> topology = nullptr;                // where the replicas run
  std::shared_ptr<const Placement> placement = nullptr;              // where a variable lives
  std::shared_ptr<const Reducer> reducer = nullptr;                  // how values are added across replicas
  std::shared_ptr<const Synchronization> synchronization = nullptr;  // when replicas' parameters meet
  std::shared_ptr<World> world = nullptr;  // the run's workers, if there are several; not one of the decisions
  uint64_t seed = 0;
  int threads_per_replica = 1;
  int64_t verify_every = 100;
  Denormals denormals = Denormals::kFlush;
  FactoredGradients factored_gradients = FactoredGradients::kAuto;
  UpdateForm update_form = UpdateForm::kAuto;  // with several workers
  WireFormat wire = WireFormat::kExact;        // the same
  Slots slots = Slots::kWhole;                 // the same
};

}  // namespace lockstep
