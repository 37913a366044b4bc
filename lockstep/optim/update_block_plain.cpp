#define LOCKSTEP_SIMD_NAMESPACE plain
#include "lockstep/optim/update_block.inc"
