// The loops of uniform_row.inc for the instructions that every processor has.
#define LOCKSTEP_SIMD_NAMESPACE plain
#include "lockstep/server/table/loops/uniform_row.inc"
