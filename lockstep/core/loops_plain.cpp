#define LOCKSTEP_SIMD_NAMESPACE plain
#include "lockstep/core/loops.inc"
