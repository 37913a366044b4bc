// How much one operation of a dtype may round.
#pragma once

#include <c10/core/ScalarType.h>

namespace lockstep::internal::inline testing {

/// The relative distance between 1 and the next larger number of the dtype; 0 for a dtype that does not round.
inline double rounding_of(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::BFloat16: return 0x1p-7;
    case c10::ScalarType::Half: return 0x1p-10;
    case c10::ScalarType::Float:
    case c10::ScalarType::ComplexFloat: return 0x1p-23;
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexDouble: return 0x1p-52;
    default: return 0;
  }
}

}  // namespace lockstep::internal::testing
