// Which part of each variable lies on which parameter server.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/server/partitioner.h"

namespace lockstep::internal::inline server {

/// Some consecutive elements of a variable's first axis, or the whole of a variable without dimensions.
struct Shard {
  int64_t first = 0;  // element of the first axis
  int64_t count = 0;  // 1 without dimensions
  int64_t server = 0;
  friend bool operator==(const Shard&, const Shard&) = default;
};

/// What is to be placed.
struct PlacedVariable {
  std::string name;  // for messages
  std::vector<int64_t> shape;
  c10::ScalarType dtype = c10::kFloat;
  bool stays_whole = false;  // no partitioner is asked
};

/// The sizes of `shards` shards of an axis: they differ by at most 1, and the first ones are the larger.
std::vector<int64_t> shard_sizes(int64_t axis, int64_t shards);

/// The shards of each variable, in the order of the axis. A pure function. A variable's shards depend on those before
/// it alone, so a program may make variables one after another. Slots follow their shards. Without a partitioner every
/// variable is one shard. A UsageError (LS-OPTION) names the variable for which the partitioner gave less than 1.
std::vector<std::vector<Shard>> place_shards(std::span<const PlacedVariable> variables, int64_t servers,
                                             const Partitioner& partitioner, ServerPlacement placement);

}  // namespace lockstep::internal::server
