// The products of few_samples_product.inc for AVX-512.
#define LOCKSTEP_SIMD_NAMESPACE avx512
#include "lockstep/linear/few_samples_product.inc"
