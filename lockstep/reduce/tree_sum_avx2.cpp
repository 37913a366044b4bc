#define LOCKSTEP_SIMD_NAMESPACE avx2
#include "lockstep/reduce/tree_sum.inc"
