#define LOCKSTEP_SIMD_NAMESPACE avx512
#include "lockstep/optim/update_block.inc"
