// The loop of outer_product.inc for AVX2 with fused multiply-add.
#define LOCKSTEP_SIMD_NAMESPACE avx2_fma
#include "lockstep/reduce/loops/outer_product.inc"
