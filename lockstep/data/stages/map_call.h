// One call of a function of map(): with the sample's random numbers, and with errors that name the sample.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/core/function_ref.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/stages/sample_random.h"

namespace lockstep::internal::inline data {

struct MapCall {
  lockstep::data::MapFunction function;
  bool takes_generator = false;
  std::string name = {};
  std::string who = "the function of " + name;  // for messages
};

/// What the function makes of `sample`, without ids. Whatever it throws is nested in a DataError that names the stage
/// and `where()`.
Batch call_map(const MapCall& call, SampleRandom& random, Batch sample, int64_t id, FunctionRef<std::string()> where);

}  // namespace lockstep::internal::data
