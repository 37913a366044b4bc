// A scheduled call of a step's function, as its arguments' payload.
#pragma once

#include <functional>
#include <memory>

#include "lockstep/server/protocol/messages.h"

namespace lockstep {
class WorkerContext;
}

namespace lockstep::internal::inline server {

/// Threads share a process, so the arguments of a step bring its function with them.
struct StepCall {
  std::function<Payload(WorkerContext&)> call;
};

inline Payload call_step(WorkerContext& context, const Payload& arguments) {
  return static_cast<const StepCall*>(arguments.get())->call(context);
}

}  // namespace lockstep::internal::server
