// The loop of outer_product.inc for NEON, which has a fused multiply-add.
#define LOCKSTEP_SIMD_NAMESPACE neon
#include "lockstep/reduce/loops/outer_product.inc"
