// One replica on one device: what a program without data parallelism does, under the same rules.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/core/denormals.h"
#include "lockstep/core/tuning/factored_gradients.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/strategy/tuning.h"

namespace lockstep {

struct OneDeviceOptions {
  std::string device = "cpu";               // or "cpu:K"
  uint64_t seed = 0;                        // of initial values, random streams and shuffling
  int threads_per_replica = 1;              // intra-op threads; part of what decides bits
  int64_t verify_every = 100;               // runs between checks of all variables for foreign writes; 0: never
  Denormals denormals = Denormals::kFlush;  // part of what decides bits
  FactoredGradients factored_gradients = FactoredGradients::kAuto;  // decides speed and memory, and no bits
  Tuning tuning = {};                                               // the options that decide no bits, in one place
};

/// One replica, on the calling thread, which is not pinned.
class OneDeviceStrategy final : public Strategy {
 public:
  explicit OneDeviceStrategy(const OneDeviceOptions& options = {});
  ~OneDeviceStrategy() override;
};

}  // namespace lockstep
