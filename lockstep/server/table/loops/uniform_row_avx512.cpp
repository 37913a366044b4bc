// The loops of uniform_row.inc for AVX-512.
#define LOCKSTEP_SIMD_NAMESPACE avx512
#include "lockstep/server/table/loops/uniform_row.inc"
