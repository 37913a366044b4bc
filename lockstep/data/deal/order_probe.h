// The question whether a data set's samples stand at other places in other epochs, or are known to be others there.
#pragma once

#include <cstdint>
#include <limits>

#include "lockstep/data/dataset.h"

namespace lockstep::internal::inline data {

/// Stands in Pass::maps_after where Source::at_epoch is only asked whether the source changes by epoch. Stages that
/// give a source for every pass, and need not change, answer for what is before them.
inline constexpr int64_t kOrderProbe = std::numeric_limits<int64_t>::min();

inline bool is_order_probe(const lockstep::data::Pass& pass) { return pass.maps_after == kOrderProbe; }

/// A map() whose function takes no generator counts as one that does not change.
inline bool changes_by_epoch(const lockstep::data::Source& source) {
  return source.at_epoch({.epoch = 1, .maps_after = kOrderProbe}) != nullptr;
}

}  // namespace lockstep::internal::data
