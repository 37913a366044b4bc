// How values of several replicas become one.
#pragma once

namespace lockstep {

/// kMean divides after the sum; of integers it is a float64, as TensorFlow's true division gives.
enum class Reduction { kSum, kMean, kMin, kMax };

/// "sum", "mean", "min" or "max".
const char* name_of(Reduction reduction);

}  // namespace lockstep
