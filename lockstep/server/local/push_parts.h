// Which server has what of a step's pulls and pushes, and norms of what is pushed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/server/local/step_payloads.h"
#include "lockstep/server/local/variable_parts.h"

namespace lockstep::internal::inline server {

/// Where values lie. With one server all is there.
struct ValuesPlacement {
  int32_t servers = 1;
  /// Of a variable. Rows of tables lie by their hash.
  std::function<const std::vector<VariablePart>&(const VariableState&)> parts_of = {};

  int32_t server_of_row(const TableState& table, int64_t id) const;
};

/// What a step wants of one server.
struct WantedOfServer {
  int32_t server = 0;
  Wanted wanted = {};
  std::vector<int64_t> places = {};             // of its variables, or ids, in the whole
  std::vector<const VariablePart*> parts = {};  // of its variables: what of each; with several servers
};
/// By server; those of which nothing is wanted are left out, but for one where nothing is wanted of any.
std::vector<WantedOfServer> by_server(Wanted wanted, const ValuesPlacement& placement);
/// One for each server, also where it gets nothing.
std::vector<Payload> by_server(const std::shared_ptr<const StepPush>& push, const ValuesPlacement& placement);

/// Whose gradient is not finite everywhere: "variable 'a'".
std::optional<std::string> not_finite_in(const StepPush& push);
/// The sum of squares of the sum of all parts' gradients, those of rows included. Null parts are nothing.
double squares_of(const std::vector<const StepPush*>& parts);
/// What gradients with these squares are multiplied by, so that their norm is at most `most`.
double clip_factor_of(double squares, double most);

}  // namespace lockstep::internal::server
