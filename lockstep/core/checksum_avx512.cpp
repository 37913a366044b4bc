#define LOCKSTEP_SIMD_NAMESPACE avx512
#include "lockstep/core/checksum.inc"
