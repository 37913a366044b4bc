// Histograms of values for TensorBoard.
#pragma once

#include <span>
#include <vector>

#include "lockstep/train/tensor_board/event_message.h"

namespace lockstep::internal::inline train {

/// 30 buckets of one width, from the least to the greatest of the finite values; others do not count. Where all are
/// equal, the buckets reach half a unit to each side. No buckets where there is no finite value.
std::vector<HistogramBucket> histogram_of(std::span<const float> values);

}  // namespace lockstep::internal::train
