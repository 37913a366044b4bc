// The loops of tree_sum.inc for what every processor has.
#define LOCKSTEP_SIMD_NAMESPACE plain
#include "lockstep/reduce/tree_sum.inc"
