#include "lockstep/data/batch.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/data/rows.h"

namespace lockstep {

at::Tensor Batch::mean(const at::Tensor& losses) const {
  if (internal::rows_of(losses) != size()) {
    throw UsageError("LS-BATCH",
                     fmt::format("Batch::mean was given {} for a part of {} rows", internal::text_of(losses), size()),
                     "give the losses of all rows: a loss with reduction none");
  }
  return losses.narrow(0, 0, samples()).mean();
}

at::Tensor Batch::weights() const {
  at::Tensor weights = at::ones({size()}, at::kFloat);
  if (padding > 0) weights.narrow(0, samples(), padding).zero_();
  return weights;
}

}  // namespace lockstep
