// The blocks in which the products of few_rows_product.h walk through the weight.
#pragma once

#include <cstdint>

namespace lockstep::internal {

/// Floats of the widest register, and of a cache line.
inline constexpr int64_t kMostLanes = 16;

/// Rows that few_rows_forward() reads side by side, and those that few_rows_input_gradient() does. Where the length of
/// a row is a power of two, all elements of one column compete for a few places of the second-level cache: not many
/// more rows would fit there.
inline constexpr int64_t kStripRows = 12;
inline constexpr int64_t kBlockRows = 32;

/// few_rows_input_gradient() keeps the sums of so many columns in the second-level cache.
inline constexpr int64_t kPanelColumns = 1024;

/// How far ahead in its rows a product asks for the weight.
inline constexpr int64_t kAheadColumns = 256;

}  // namespace lockstep::internal
