// Makes samples of the right shape for each model, for measuring.
#pragma once

#include <cstdint>

#include "lockstep/data/batch.h"
#include "tools/models/models.h"

namespace lockstep::tools {

/// `size` samples that are a function of (model, size, seed); `global_size` is left to the caller.
Batch made_batch(const ModelOptions& model, int64_t size, uint64_t seed);

}  // namespace lockstep::tools
