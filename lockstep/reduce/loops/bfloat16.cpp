#include "lockstep/reduce/loops/bfloat16.h"

#include <cstring>

namespace lockstep::internal::inline reduce {

void to_bfloat16(const float* from, int64_t count, Bfloat16* to) {
  constexpr uint32_t kSign = 0x80000000;
  constexpr uint32_t kInfinity = 0x7F800000;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, from + i, sizeof bits);
    const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    to[i] = static_cast<Bfloat16>((bits & ~kSign) > kInfinity ? 0x7FC0 : rounded);
  }
}

void from_bfloat16(const Bfloat16* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = uint32_t{from[i]} << 16;
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

}  // namespace lockstep::internal::reduce
