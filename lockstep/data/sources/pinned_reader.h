// Batches in pinned host memory, from which a GPU copies without another copy on the way.
#pragma once

#include <memory>

#include "lockstep/data/deal/deal.h"

namespace lockstep::internal::inline data {

/// Throws a UsageError unless LibTorch sees a CUDA GPU.
void require_gpu_to_pin_for();

/// The same steps with their batches copied to pinned memory, by whichever thread reads the step. LibTorch's allocator
/// keeps that memory and uses it again. Tensors that are pinned already, that are not dense, or that need a gradient
/// stay as they are. A step throws a DataError where no memory can be pinned.
std::unique_ptr<EpochReader> pinned(std::unique_ptr<EpochReader> reader);

}  // namespace lockstep::internal::data
