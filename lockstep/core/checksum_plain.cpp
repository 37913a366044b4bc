#define LOCKSTEP_SIMD_NAMESPACE plain
#include "lockstep/core/checksum.inc"
