// Whether LibTorch computes a matrix product of a linear layer with the bits that the library has for it. Both are
// compared on test numbers, once for each shape and the calling thread's settings; a thread that asks meanwhile waits.
#pragma once

#include <cstdint>

namespace lockstep::internal {

/// Whether LibTorch's product of a [samples, rows] matrix, transposed, and a [samples, columns] one has the bits of
/// Factors.
bool libtorch_adds_in_order(int64_t samples, int64_t rows, int64_t columns);

/// The products of few_rows_products().
enum class LinearProduct { kOutput, kOutputWithBias, kInputGradient };

/// Whether LibTorch's product with a weight of [rows, columns] has the bits of few_rows_products(), which are there.
bool libtorch_adds_in_chains(LinearProduct product, int64_t samples, int64_t rows, int64_t columns);

}  // namespace lockstep::internal
