#define LOCKSTEP_SIMD_NAMESPACE avx2
#include "lockstep/core/checksum.inc"
