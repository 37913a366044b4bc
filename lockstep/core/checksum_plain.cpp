// The loops of checksum.inc for what every processor has.
#define LOCKSTEP_SIMD_NAMESPACE plain
#include "lockstep/core/checksum.inc"
