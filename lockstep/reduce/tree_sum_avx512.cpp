#define LOCKSTEP_SIMD_NAMESPACE avx512
#include "lockstep/reduce/tree_sum.inc"
