// How the gradient of a variable travelled between workers in a step, for describe().
#pragma once

#include <cstdint>

namespace lockstep::internal::inline exchange {

struct Travelled {
  enum class As : uint8_t { kNothing, kSums, kFactors } as = As::kNothing;
  int64_t bytes = 0;             // that this worker sent; sums without the gaps between variables
  bool during_backward = false;  // all of it
  bool is_rounded = false;       // to bfloat16
};

}  // namespace lockstep::internal::exchange
