// Replicas on the lanes of one machine, over variables that lie in one place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/denormals.h"
#include "lockstep/core/tuning/factored_gradients.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/tuning.h"

namespace lockstep {

struct CentralStorageOptions {
  std::vector<std::string> devices = {};    // as MirroredOptions::devices
  int64_t replicas = 0;                     // as MirroredOptions::replicas
  std::string storage = "cpu";              // the device in whose memory on-write variables and their slots lie
  uint64_t seed = 0;                        // of initial values, random streams and shuffling
  int threads_per_replica = 1;              // intra-op threads; part of what decides bits
  int64_t verify_every = 100;               // runs between checks of all variables for foreign writes; 0: never
  Denormals denormals = Denormals::kFlush;  // part of what decides bits
  FactoredGradients factored_gradients = FactoredGradients::kAuto;  // decides speed and memory, and no bits
  Tuning tuning = {};                                               // the options that decide no bits, in one place
};

/// Each on-write variable has one copy, in `.storage`. Replicas read it from there; their gradients are added there and
/// applied once. Each replica has its own component of an on-read variable, as under every strategy. Where storage and
/// replicas share a memory, as the host's lanes do, replicas read and optimizers write the variable where it lies: this
/// needs no copy, and every bit is that of a MirroredStrategy with the same number of replicas. This build has lanes of
/// the host only, so `.storage` is "cpu" or a lane's name; any other value is a UsageError.
class CentralStorageStrategy final : public Strategy {
 public:
  explicit CentralStorageStrategy(CentralStorageOptions options = {});
  ~CentralStorageStrategy() override;
};

}  // namespace lockstep
