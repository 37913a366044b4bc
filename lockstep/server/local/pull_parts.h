// Where values lie, what a step asks of which server, and how the answers are put together.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/core/function_ref.h"
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

/// A value that was pulled.
struct PulledValue {
  at::Tensor value = {};  // undefined: the worker has it
  HadAt at = {};
};
/// The values that are `wanted`, in their order, of the servers' answers to what they were `asked`. `old` gives what
/// the worker has of a variable that is wanted, where only some servers send what they have of it. Throws the error of
/// an answer, and a PeerError (LS-PEER-MESSAGE) for one that is something else than what was asked for.
std::vector<PulledValue> put_together(const Wanted& wanted, const std::vector<WantedOfServer>& asked,
                                      const std::vector<const PulledTensors*>& answers,
                                      FunctionRef<at::Tensor(std::size_t)> old);

}  // namespace lockstep::internal::server
