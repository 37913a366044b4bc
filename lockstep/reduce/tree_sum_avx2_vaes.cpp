#define LOCKSTEP_SIMD_NAMESPACE avx2_vaes
#include "lockstep/reduce/tree_sum.inc"
