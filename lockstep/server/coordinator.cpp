#include "lockstep/server/coordinator.h"

#include "lockstep/core/error.h"
#include "lockstep/server/local/chief_task.h"
#include "lockstep/server/local/coordinated_run.h"

namespace lockstep {

namespace internal::inline server {

Payload wait_for_result(const std::shared_ptr<ScheduledStep>& step) { return step->chief->result_of(*step); }

Payload result_at_hand(const ScheduledStep& step) { return step.result; }

void throw_empty_remote_value() {
  throw UsageError("LS-EMPTY-HANDLE", "a RemoteValue is empty: no step was scheduled for it",
                   "use what coordinator.schedule() returned");
}

at::Tensor copied(const at::Tensor& tensor) { return tensor.defined() ? tensor.detach().clone() : tensor; }

Payload kept_result(const at::Tensor& result) { return std::make_shared<StepValue>(copied(result)); }

void throw_other_step_value() {
  throw UsageError("LS-STEP-VALUE",
                   "a step was given other arguments, or returned something else, than its function says",
                   "run the same program on all tasks, and schedule a step with as many arguments as it takes");
}

void throw_unknown_parameters() {
  throw UsageError("LS-STEP-VALUE",
                   "a step's function does not say which tensors, numbers and strings it takes, and its arguments come "
                   "from another process",
                   "name the types of its parameters, such as `const at::Tensor&`, `double`, `const std::string&`");
}

std::shared_ptr<ScheduledStep> schedule_call(CoordinatedRun& run, uint32_t kind, StepCall call, uint64_t bytes,
                                             const std::vector<std::shared_ptr<ScheduledStep>>& after) {
  run.before_schedule();
  StepRequest request;
  request.kind = kind;
  request.arguments = std::make_shared<StepCall>(std::move(call));
  request.argument_bytes = bytes;
  return run.chief().schedule(std::move(request), after);
}

}  // namespace internal::server

void Coordinator::join() {
  run_.chief().join();
  run_.catch_up();  // so that every later step sees what these have pushed
}

bool Coordinator::done() { return run_.chief().done(); }
void Coordinator::cancel() { run_.chief().cancel(); }
int64_t Coordinator::steps() const { return run_.chief().steps(); }

}  // namespace lockstep
