// The loops of update_rows.inc for AVX2.
#define LOCKSTEP_SIMD_NAMESPACE avx2
#include "lockstep/server/table/loops/update_rows.inc"
