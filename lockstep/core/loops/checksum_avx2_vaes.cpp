// The loops of checksum.inc for AVX2 and VAES.
#define LOCKSTEP_SIMD_NAMESPACE avx2_vaes
#include "lockstep/core/loops/checksum.inc"
