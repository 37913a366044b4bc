// The products of few_samples_product.inc for NEON, which has a fused multiply-add.
#define LOCKSTEP_SIMD_NAMESPACE neon
#include "lockstep/linear/few_samples_product.inc"
