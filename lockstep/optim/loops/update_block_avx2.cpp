// The loops of update_block.inc for AVX2.
#define LOCKSTEP_SIMD_NAMESPACE avx2
#include "lockstep/optim/loops/update_block.inc"
