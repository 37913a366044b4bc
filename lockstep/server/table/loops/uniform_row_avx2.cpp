// The loops of uniform_row.inc for AVX2.
#define LOCKSTEP_SIMD_NAMESPACE avx2
#include "lockstep/server/table/loops/uniform_row.inc"
