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

/// What a worker makes of a part of a batch in an evaluation; of a part without samples perhaps nothing.
using PartResult = std::vector<at::Tensor>;
using EvaluateFunction = std::function<PartResult(WorkerContext&, const Batch&)>;

/// Gives the tensor that `fn` returns, if it returns one, for a part that has samples.
EvaluateFunction mean_of_part(std::function<at::Tensor(WorkerContext&, const Batch&)> fn);

/// A step's function for tasks that are processes.
struct NamedStep {
  std::string name;
  std::function<Payload(WorkerContext&, const StepValues&)> call;
  EvaluateFunction evaluate = {};  // of a function that takes a batch; otherwise empty
};

}  // namespace lockstep::internal::server
