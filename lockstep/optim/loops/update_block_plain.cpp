// The loops of update_block.inc for the instructions that every processor has.
#define LOCKSTEP_SIMD_NAMESPACE plain
#include "lockstep/optim/loops/update_block.inc"
