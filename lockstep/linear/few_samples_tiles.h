// The blocks in which the products of few_samples_product.h walk through the weight.
#pragma once

#include <cstdint>

namespace lockstep::internal::inline linear {

/// Floats of the widest register, and of a cache line.
inline constexpr int64_t kWidestVector = 16;

/// Rows that few_samples_forward() reads side by side. Where the length of a row is a power of two, all elements of one
/// column compete for one set of the second-level cache: not many more rows would fit there.
inline constexpr int64_t kStripRows = 12;

/// Rows that few_samples_input_gradient() reads side by side; fewer columns of them at a time.
inline constexpr int64_t kBlockRows = 32;

/// few_samples_input_gradient() keeps the sums of so many columns in the second-level cache.
inline constexpr int64_t kPanelColumns = 1024;

/// How far ahead in its rows a product prefetches the weight.
inline constexpr int64_t kPrefetchColumns = 256;

}  // namespace lockstep::internal::linear
