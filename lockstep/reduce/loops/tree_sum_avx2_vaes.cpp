// The loops of tree_sum.inc for AVX2 and VAES.
#define LOCKSTEP_SIMD_NAMESPACE avx2_vaes
#include "lockstep/reduce/loops/tree_sum.inc"
