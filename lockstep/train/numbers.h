// Numbers in JSON, which has no NaN and no infinity.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace lockstep::internal::inline train {

/// A finite number as it is; others as "NaN", "Infinity" and "-Infinity".
nlohmann::json json_of(double value);
/// Back again. Throws nlohmann's errors for anything else.
double number_of(const nlohmann::json& json);

}  // namespace lockstep::internal::train
