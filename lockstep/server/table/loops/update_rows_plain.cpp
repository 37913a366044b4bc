// The loops of update_rows.inc for the instructions that every processor has.
#define LOCKSTEP_SIMD_NAMESPACE plain
#include "lockstep/server/table/loops/update_rows.inc"
