// The loops of update_rows.inc for AVX2 and VAES.
#define LOCKSTEP_SIMD_NAMESPACE avx2_vaes
#include "lockstep/server/table/loops/update_rows.inc"
