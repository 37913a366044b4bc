// Chooses among the checksum's loops, which were compiled for several sets of vector instructions.
#include "lockstep/core/loops/checksum.h"

#include "lockstep/core/loops/simd.h"

namespace lockstep::internal::inline core {

LOCKSTEP_IN_EACH_SIMD(uint64_t checksum(const void* memory, int64_t bytes);)

uint64_t checksum(const void* memory, int64_t bytes) { return LOCKSTEP_BY_SIMD(checksum)(memory, bytes); }

}  // namespace lockstep::internal::core
