#define LOCKSTEP_SIMD_NAMESPACE avx2_vaes
#include "lockstep/core/checksum.inc"
