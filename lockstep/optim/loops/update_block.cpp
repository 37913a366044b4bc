// Chooses among the update loops that were compiled for several sets of vector instructions.
#include "lockstep/optim/loops/update_block.h"

#include "lockstep/core/loops/simd.h"

namespace lockstep::internal::inline optim {

LOCKSTEP_IN_EACH_SIMD(template <class T> UpdateBlock update_block(UpdateKind kind);
                      template <class T> void measure_block(BlockUpdate& block);)

template <class T>
UpdateBlock update_block(UpdateKind kind) {
  return LOCKSTEP_BY_SIMD(update_block<T>)(kind);
}

template <class T>
MeasureBlock measure_block() {
  return LOCKSTEP_BY_SIMD(measure_block<T>);
}

template UpdateBlock update_block<float>(UpdateKind);
template UpdateBlock update_block<double>(UpdateKind);
template MeasureBlock measure_block<float>();
template MeasureBlock measure_block<double>();

}  // namespace lockstep::internal::optim
