// The loops of checksum.inc for AVX-512.
#define LOCKSTEP_SIMD_NAMESPACE avx512
#include "lockstep/core/loops/checksum.inc"
