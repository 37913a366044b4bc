#include "lockstep/train/tensor_board/histogram.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace lockstep::internal::inline train {

std::vector<HistogramBucket> histogram_of(std::span<const float> values) {
  constexpr std::size_t kBuckets = 30;
  double least = std::numeric_limits<double>::infinity();
  double greatest = -least;
  for (const float value : values) {
    if (!std::isfinite(value)) continue;
    least = std::min<double>(least, value);
    greatest = std::max<double>(greatest, value);
  }
  if (least > greatest) return {};
  if (least == greatest) {
    const double half = std::max(0.5, std::abs(least) * 0x1p-40);  // which is not rounded away
    least -= half;
    greatest += half;
  }
  const double width = (greatest - least) / kBuckets;
  std::vector<HistogramBucket> buckets(kBuckets);
  for (std::size_t i = 0; i < kBuckets; ++i) {
    buckets[i].left = least + width * static_cast<double>(i);
    buckets[i].right = i + 1 == kBuckets ? greatest : least + width * static_cast<double>(i + 1);
  }
  for (const float value : values) {
    if (!std::isfinite(value)) continue;
    const auto at = static_cast<std::size_t>((value - least) / width);
    ++buckets[std::min(at, kBuckets - 1)].count;
  }
  return buckets;
}

}  // namespace lockstep::internal::train
