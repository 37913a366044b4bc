// The loops of update_rows.inc for AVX-512.
#define LOCKSTEP_SIMD_NAMESPACE avx512
#include "lockstep/server/table/loops/update_rows.inc"
