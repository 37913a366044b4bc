// The loops of update_block.inc for AVX2 and VAES.
#define LOCKSTEP_SIMD_NAMESPACE avx2_vaes
#include "lockstep/optim/loops/update_block.inc"
