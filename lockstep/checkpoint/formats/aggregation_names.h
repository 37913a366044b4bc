// The words by which a manifest names how the components of a variable become one value. Nothing here knows LibTorch.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace lockstep::internal::inline checkpoint {

/// In the order of VariableAggregation.
inline constexpr std::array<std::string_view, 4> kAggregationNames{"none", "sum", "mean", "first"};

/// Whether a manifest may have this word. Older checkpoints have none.
inline bool is_aggregation_name(std::string_view text) {
  return text.empty() || std::find(kAggregationNames.begin(), kAggregationNames.end(), text) != kAggregationNames.end();
}

}  // namespace lockstep::internal::checkpoint
