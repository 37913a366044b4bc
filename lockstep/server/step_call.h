// A scheduled call of a step's function, as its arguments' payload, and the functions of steps by their kinds.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/server/step_value.h"

namespace lockstep::internal::inline server {

struct ScheduledStep;

/// An argument: a value, or the result of an earlier step.
using StepInput = std::variant<StepValue, std::shared_ptr<ScheduledStep>>;

/// A worker that is a thread calls `call`. A worker that is a process gets `inputs`, and calls its own function of this
/// step.
struct StepCall {
  std::function<Payload(WorkerContext&)> call;
  std::vector<StepInput> inputs = {};
};

inline Payload call_step(WorkerContext& context, const Payload& arguments) {
  return static_cast<const StepCall*>(arguments.get())->call(context);
}

/// A step's function for tasks that are processes.
struct NamedStep {
  std::string name;
  std::function<Payload(WorkerContext&, const StepValues&)> call;
};

}  // namespace lockstep::internal::server
