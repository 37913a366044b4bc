// The loops of tree_sum.inc for the vector instructions that every processor has.
#define LOCKSTEP_SIMD_NAMESPACE plain
#include "lockstep/reduce/loops/tree_sum.inc"
