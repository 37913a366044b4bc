// The loops of update_block.inc for AVX-512.
#define LOCKSTEP_SIMD_NAMESPACE avx512
#include "lockstep/optim/loops/update_block.inc"
