// Chooses among the checksum's loops, which were compiled for several sets of vector instructions.
#include "lockstep/core/checksum.h"

#include "lockstep/core/simd.h"

namespace lockstep::internal {

namespace plain {
uint64_t checksum(const void* memory, int64_t bytes);
}
namespace avx2 {
uint64_t checksum(const void* memory, int64_t bytes);
}
namespace avx2_vaes {
uint64_t checksum(const void* memory, int64_t bytes);
}
namespace avx512 {
uint64_t checksum(const void* memory, int64_t bytes);
}

uint64_t checksum(const void* memory, int64_t bytes) {
  switch (simd()) {
#if defined(LOCKSTEP_WIDE_SIMD)
    case Simd::kAvx512: return avx512::checksum(memory, bytes);
    case Simd::kAvx2Vaes: return avx2_vaes::checksum(memory, bytes);
    case Simd::kAvx2: return avx2::checksum(memory, bytes);
#endif
    default: return plain::checksum(memory, bytes);
  }
}

}  // namespace lockstep::internal
