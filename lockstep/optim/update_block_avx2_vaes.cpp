#define LOCKSTEP_SIMD_NAMESPACE avx2_vaes
#include "lockstep/optim/update_block.inc"
