// The loops of update_block.inc for what every processor has.
#define LOCKSTEP_SIMD_NAMESPACE plain
#include "lockstep/optim/update_block.inc"
