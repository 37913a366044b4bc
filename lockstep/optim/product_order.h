// Whether LibTorch computes a gradient with the bits that the library makes from its factors.
#pragma once

#include <cstdint>

namespace lockstep::internal {

/// Whether LibTorch's product of a [samples, rows] matrix, transposed, and a [samples, columns] one has the bits of
/// Factors, with the calling thread's settings. Both are compared on test numbers, once for each shape and settings; a
/// thread that asks meanwhile waits.
bool libtorch_adds_in_order(int64_t samples, int64_t rows, int64_t columns);

}  // namespace lockstep::internal
