// Restore on create: what a checkpoint has and the program lacks waits until the program makes it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/checkpoint/saved_values.h"
#include "lockstep/checkpoint/take_image.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline checkpoint {

/// What waits.
struct Late {
  std::map<KindAndName, Saved> items = {};
  std::map<std::string, std::string> data = {};    // for Checkpoint::track
  std::map<std::string, std::string> values = {};  // likewise
  bool empty() const { return items.empty() && data.empty() && values.empty(); }
};

/// From now on what the strategy makes is given these values, of the checkpoint `what`. What waited before is dropped.
void wait_for_later(const Strategy& strategy, Late late, const std::string& what);

/// The names of what waits, sorted.
std::vector<std::string> waiting_names(const Strategy& strategy);

/// Gives what was tracked under `name` the value that waits for it.
void give_to_tracked(const Strategy& strategy, const std::string& name, const DistributedDataset& data);
void give_to_tracked(const Strategy& strategy, const std::string& name, const Tracked::Value& value);

}  // namespace lockstep::internal::checkpoint
