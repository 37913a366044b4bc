#include "lockstep/server/coordinator.h"

#include <string>

#include "lockstep/core/error.h"
#include "lockstep/server/local/chief_task.h"
#include "lockstep/server/local/local_run.h"

namespace lockstep {

namespace internal::inline server {

Payload wait_for_result(const std::shared_ptr<ScheduledStep>& step) { return step->chief->result_of(*step); }

Payload result_at_hand(const ScheduledStep& step) { return step.result; }

void throw_empty_remote_value() {
  throw UsageError("LS-EMPTY-HANDLE", "a RemoteValue is empty: no step was scheduled for it",
                   "use what coordinator.schedule() returned");
}

at::Tensor copied(const at::Tensor& tensor) { return tensor.defined() ? tensor.detach().clone() : tensor; }

Payload kept_result(const at::Tensor& result) { return std::make_shared<at::Tensor>(copied(result)); }

void require_step_of(const ChiefTask& chief, const void* owner, const std::string& name) {
  if (owner == chief.owner()) return;
  throw UsageError("LS-OTHER-STRATEGY", "the step '" + name + "' of another strategy was scheduled",
                   "schedule steps that this coordinator's strategy has named");
}

std::shared_ptr<ScheduledStep> schedule_call(ChiefTask& chief, uint32_t kind, StepCall call, uint64_t bytes,
                                             const std::vector<std::shared_ptr<ScheduledStep>>& after) {
  StepRequest request;
  request.kind = kind;
  request.arguments = std::make_shared<StepCall>(std::move(call));
  request.argument_bytes = bytes;
  return chief.schedule(std::move(request), after);
}

}  // namespace internal::server

Coordinator::Coordinator(internal::LocalRun& run) : chief_(run.chief().shared_from_this()), run_(run) {}

void Coordinator::join() {
  chief_->join();
  run_.catch_up();  // so that every later step sees what these have pushed
}

bool Coordinator::done() { return chief_->done(); }
void Coordinator::cancel() { chief_->cancel(); }
int64_t Coordinator::steps() const { return chief_->steps(); }

}  // namespace lockstep
