// The loops of checksum.inc for AVX2.
#define LOCKSTEP_SIMD_NAMESPACE avx2
#include "lockstep/core/loops/checksum.inc"
