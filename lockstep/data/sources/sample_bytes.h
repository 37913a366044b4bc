// A sample's tensors as bytes, for the cache's file and for other workers.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/data/batch.h"

namespace lockstep::internal::inline data {

/// Input, target and the tensors in `more`: names, dtypes, shapes and elements.
std::string bytes_of(const Batch& sample);
/// The sample back; nothing where the bytes are not what bytes_of() makes. No number in them decides an allocation
/// beyond their own length.
std::optional<Batch> sample_of(std::string_view bytes);

}  // namespace lockstep::internal::data
