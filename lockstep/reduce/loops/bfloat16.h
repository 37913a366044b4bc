// float32 numbers as bfloat16, the upper half of their bits, for what travels between workers.
#pragma once

#include <cstdint>

namespace lockstep::internal::inline reduce {

/// The bits of a bfloat16.
using Bfloat16 = uint16_t;

/// Rounds to the nearest, ties to even, as LibTorch does; every NaN becomes 0x7FC0.
void to_bfloat16(const float* from, int64_t count, Bfloat16* to);
/// Exact.
void from_bfloat16(const Bfloat16* from, int64_t count, float* to);

}  // namespace lockstep::internal::reduce
