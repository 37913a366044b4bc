// The loops of tree_sum.inc for AVX-512.
#define LOCKSTEP_SIMD_NAMESPACE avx512
#include "lockstep/reduce/loops/tree_sum.inc"
