// The types of numbers that a table's rows may have.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <type_traits>

namespace lockstep::internal::inline server {

/// Calls fn(Stored()) for the type that numbers of `dtype` have in memory. check() of EmbeddingOptions lets no other
/// dtype through.
template <class Fn>
void for_stored_type(c10::ScalarType dtype, const Fn& fn) {
  switch (dtype) {
    case c10::kDouble: fn(double()); break;
    case c10::kHalf: fn(c10::Half()); break;
    case c10::kBFloat16: fn(c10::BFloat16()); break;
    default: fn(float());
  }
}

/// The type in which such numbers are computed, and in which their gradients come.
template <class Stored>
using Computed = std::conditional_t<std::is_same_v<Stored, double>, double, float>;

}  // namespace lockstep::internal::server
