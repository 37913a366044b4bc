// The loops of uniform_row.inc for AVX2 and VAES.
#define LOCKSTEP_SIMD_NAMESPACE avx2_vaes
#include "lockstep/server/table/loops/uniform_row.inc"
