// Between a run and a checkpoint in memory.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/image.h"
#include "lockstep/data/distributed_dataset.h"
#include "lockstep/strategy/state_items.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal {

/// What a program asked a Checkpoint to save besides the strategy's own state.
struct Tracked {
  struct Value {
    std::function<std::string()> save;
    std::function<void(const std::string&)> load;
  };
  std::map<std::string, DistributedDataset> data;
  std::map<std::string, Value> values;
};

/// "mirrored", "on-read", "slot", "step-count", "learning-rate", "number", "cursor".
const char* kind_text(StateItem::Kind kind);

/// The cursor that data::to_json() wrote. A DataError that names `what` for a text that is none.
data::Cursor cursor_of(const std::string& text, const std::string& what);

/// Copies everything. All workers call it; the chief's image has the values of all replicas. A DivergenceError where a
/// foreign write to a variable is found.
Image capture(const Strategy& strategy, const Tracked& tracked);

/// Whether the patterns want a name: all names where there are no patterns.
bool is_wanted(const std::vector<std::string>& patterns, const std::string& name);

/// Sets everything from `image`, which is the same on all workers, or changes nothing and throws.
RestoreInfo apply(const Image& image, const Strategy& strategy, const Tracked& tracked, const RestoreOptions& options,
                  const std::string& what);

}  // namespace lockstep::internal
