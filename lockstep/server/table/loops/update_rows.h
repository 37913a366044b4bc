// The update of rows of a table, one after another: summed gradients in, new weights and slots out, in place.
#pragma once

#include <cstdint>

#include "lockstep/optim/loops/update_block.h"

namespace lockstep::internal::inline server {

/// Rows of `width` numbers of the kernel's type. Each pointer list is by row.
struct RowBatch {
  char* const* rows;             // the weights, then each slot, without a gap
  const void* const* gradients;  // `width` numbers each
  /// The numbers of each row's update. The kernel goes faster where the pointers of rows that follow each other are
  /// equal.
  const Coefficients* const* coefficients;
  int64_t count;  // of rows
  int64_t width;
  double factor;  // the gradient is multiplied by it,
  double most;    // and then no element has a larger magnitude; infinite: no limit
};

/// Each row gets the bits that UpdateBlock and Clip give a variable of the row's numbers.
using UpdateRows = void (*)(const RowBatch& batch);

/// The loop for this processor; T is float or double. Null for UpdateKind::kOwn.
template <class T>
UpdateRows update_rows(UpdateKind kind);

}  // namespace lockstep::internal::server
