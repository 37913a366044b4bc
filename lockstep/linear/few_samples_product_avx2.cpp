// The products of few_samples_product.inc for AVX2 with fused multiply-add.
#define LOCKSTEP_SIMD_NAMESPACE avx2_fma
#include "lockstep/linear/few_samples_product.inc"
