// Chooses among the loops over rows that were compiled for several sets of vector instructions.
#include "lockstep/server/table/loops/update_rows.h"

#include "lockstep/core/loops/simd.h"

namespace lockstep::internal::inline server {

LOCKSTEP_IN_EACH_SIMD(template <class T> UpdateRows update_rows(UpdateKind kind);)

template <class T>
UpdateRows update_rows(UpdateKind kind) {
  return LOCKSTEP_BY_SIMD(update_rows<T>)(kind);
}

template UpdateRows update_rows<float>(UpdateKind);
template UpdateRows update_rows<double>(UpdateKind);

}  // namespace lockstep::internal::server
