// Batches in memory that is pinned for a GPU: a copy to the GPU from such memory needs no copy on the way, and runs
// beside the program where it is told to (`.to(device, /*non_blocking=*/true)`).
#pragma once

#include <memory>

#include "lockstep/data/deal.h"

namespace lockstep::internal {

/// Throws a UsageError unless LibTorch sees a GPU of CUDA's.
void require_gpu_to_pin_for();

/// The same steps with their batches copied to pinned memory, by whichever thread reads the step. LibTorch's allocator
/// keeps that memory and uses it again. Tensors that are pinned already, that are not dense, or that need a gradient
/// stay as they are. A step throws a DataError where no memory can be pinned.
std::unique_ptr<EpochReader> pinned(std::unique_ptr<EpochReader> reader);

}  // namespace lockstep::internal
