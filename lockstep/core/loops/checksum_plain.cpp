// The loops of checksum.inc for the vector instructions that every processor has.
#define LOCKSTEP_SIMD_NAMESPACE plain
#include "lockstep/core/loops/checksum.inc"
