// The loop of outer_product.inc for AVX-512.
#define LOCKSTEP_SIMD_NAMESPACE avx512
#include "lockstep/reduce/outer_product.inc"
