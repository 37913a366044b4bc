// How values of several replicas become one.
#pragma once

namespace lockstep {

/// kSum keeps the dtype: integers wrap at its limits, as LibTorch's own addition does. kMean divides after the sum; for
/// integers it is float64, as TensorFlow's true division gives, and the sum does not wrap before the division.
enum class Reduction { kSum, kMean, kMin, kMax };

/// "sum", "mean", "min" or "max".
const char* name_of(Reduction reduction);

}  // namespace lockstep
