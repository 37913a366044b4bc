// The loop of outer_product.inc for AVX-512.
#define LOCKSTEP_SIMD_NAMESPACE avx512
#include "lockstep/reduce/loops/outer_product.inc"
