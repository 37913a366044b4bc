// A copy of a batch, for what keeps batches that it also gives away: functions and loops of the program may work in
// place.
#pragma once

#include <ATen/core/TensorBody.h>

#include "lockstep/data/batch.h"

namespace lockstep::internal::inline data {

/// The same with memory of its own.
inline Batch copied(Batch batch) {
  for_each_tensor(batch, [](at::Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.clone();
  });
  return batch;
}

}  // namespace lockstep::internal::data
