// The products of few_rows_product.inc for AVX-512.
#define LOCKSTEP_SIMD_NAMESPACE avx512
#include "lockstep/linear/few_rows_product.inc"
