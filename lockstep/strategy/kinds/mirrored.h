// Replicas on the lanes of one machine, over variables that are equal on all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/denormals.h"
#include "lockstep/core/tuning/copies.h"
#include "lockstep/core/tuning/factored_gradients.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/tuning.h"
#include "lockstep/variable/placement.h"

namespace lockstep {

/// The placement for `copies`.
std::shared_ptr<const Placement> placement_of(Copies copies);

struct MirroredOptions {
  /// "cpu:K" is lane K of the host: any numbers from 0, no duplicates. Lanes take the cores that the process may use in
  /// turn, and several strategies of one process take different cores where there are enough. Where there are more
  /// lanes than cores, or where a container's quota grants less than all cores, lanes are not pinned. Empty: as many
  /// lanes as cores, which a quota may reduce, and at most `replicas` where that is given.
  std::vector<std::string> devices = {};
  /// At least one for each lane. They are dealt to the lanes in blocks whose sizes differ by at most one, the larger
  /// blocks first. The number of replicas decides results; lanes do not. 0: one for each lane.
  int64_t replicas = 0;
  Copies copies = Copies::kPerMemory;
  uint64_t seed = 0;                        // of initial values, random streams and shuffling
  int threads_per_replica = 1;              // intra-op threads; part of what decides bits
  int64_t verify_every = 100;               // runs between checks of all variables for foreign writes; 0: never
  Denormals denormals = Denormals::kFlush;  // part of what decides bits
  FactoredGradients factored_gradients = FactoredGradients::kAuto;  // decides speed and memory, and no bits
  Tuning tuning = {};                                               // the options that decide no bits, in one place
};

/// Every replica has its own thread (replica 0: the caller's), and a lane lets one of its replicas run at a time.
/// With the same number of replicas the bits of all variables are the same on any number of lanes.
class MirroredStrategy final : public Strategy {
 public:
  explicit MirroredStrategy(MirroredOptions options = {});
  ~MirroredStrategy() override;
};

}  // namespace lockstep
