// Text that a trained model makes up.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/lockstep.h"
#include "tools/train/optimizers.h"

namespace lockstep::tools {

/// `count` characters, each drawn from what the model expects after up to `context` before it. Replica 0 draws, from
/// its own stream: the same text on any number of lanes.
std::string sample_text(Strategy& strategy, const ReplicatedModel& model, const std::string& vocabulary,
                        int64_t context, int64_t count);

}  // namespace lockstep::tools
