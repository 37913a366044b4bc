// What of a step's push goes to which server, and norms of what is pushed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/server/local/pull_parts.h"
#include "lockstep/server/local/step_payloads.h"

namespace lockstep::internal::inline server {

/// One for each server, also where it gets nothing.
std::vector<Payload> by_server(const std::shared_ptr<const StepPush>& push, const ValuesPlacement& placement);

/// Whose gradient is not finite everywhere: "variable 'a'".
std::optional<std::string> not_finite_in(const StepPush& push);
/// The sum of squares of the sum of all parts' gradients, those of rows included. Null parts are nothing.
double squares_of(const std::vector<const StepPush*>& parts);
/// What gradients with these squares are multiplied by, so that their norm is at most `most`.
double clip_factor_of(double squares, double most);

}  // namespace lockstep::internal::server
