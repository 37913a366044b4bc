#define LOCKSTEP_SIMD_NAMESPACE plain
#include "lockstep/reduce/tree_sum.inc"
