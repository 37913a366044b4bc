// The loops of tree_sum.inc for AVX-512.
#define LOCKSTEP_SIMD_NAMESPACE avx512
#include "lockstep/reduce/tree_sum.inc"
