// The loops of tree_sum.inc for AVX2.
#define LOCKSTEP_SIMD_NAMESPACE avx2
#include "lockstep/reduce/loops/tree_sum.inc"
