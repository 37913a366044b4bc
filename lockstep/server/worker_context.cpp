#include "lockstep/server/worker_context.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/core/error.h"
#include "lockstep/data/deal/deal.h"
#include "lockstep/replica/loss/loss_weight.h"
#include "lockstep/server/local/worker_task.h"
#include "lockstep/server/record/value_digest.h"
#include "lockstep/strategy/strategy_access.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep {

void WorkerContext::check_is_current(const char* call) const {
  if (task_.current() == &step_) return;
  throw UsageError("LS-CONTEXT", fmt::format("{} was called on a context whose step has ended", call),
                   "use a context inside its step's function only");
}

int64_t WorkerContext::worker_index() const { return task_.index(); }
int64_t WorkerContext::num_workers() const { return task_.shared().workers; }
int64_t WorkerContext::step() const { return step_.evaluation ? step_.evaluation->step : step_.step.step; }

void WorkerContext::check_is_no_evaluation(const char* call, const char* remedy) const {
  check_is_current(call);
  if (!step_.evaluation) return;
  throw UsageError("LS-EVALUATE", fmt::format("{} was called in an evaluation", call), remedy);
}

at::Tensor WorkerContext::scale_loss(const at::Tensor& mean_loss) const {
  check_is_current("scale_loss");
  if (!mean_loss.defined()) {
    throw UsageError("LS-NOT-DENSE", "scale_loss was given an undefined tensor",
                     "give the loss that the step computed");
  }
  step_.has_scaled = true;
  if (!task_.shared().in_rounds) return mean_loss;
  if (!step_.share && !step_.took_stream) {
    throw UsageError("LS-BATCH", "scale_loss was called in a step that has taken no batch, and workers go in step",
                     "take the batch in the step: data.next(ctx)");
  }
  const double share = step_.share.value_or(1.0 / static_cast<double>(task_.shared().workers));
  if (share == 0) return internal::zero_that_keeps_graph(mean_loss);
  return share == 1 ? mean_loss : internal::weighted_loss(mean_loss, share);
}

void WorkerContext::push(const StepOptions& options) {
  check_is_no_evaluation("push", "leave it out: an evaluation has no gradients, and changes travel by themselves");
  if (step_.has_pushed) {
    throw UsageError("LS-PUSH", fmt::format("step {} has pushed twice", step()),
                     "push once, at the end of the step: gradients of several backwards add up until then");
  }
  task_.push(step_, options);
}

at::Generator WorkerContext::random() const {
  check_is_current("random");
  return task_.stream().generator();
}

Batch WorkerContext::batch_of(const DistributedDataset& data) const {
  check_is_no_evaluation("DistributedDataset::next", "use the batch that the function is given");
  const internal::WorkersShared& shared = task_.shared();
  const auto* deal = static_cast<const internal::Deal*>(data.identity());
  if (deal && &deal->group() != &internal::StrategyAccess::group(shared.strategy)) {
    throw UsageError("LS-OTHER-STRATEGY",
                     fmt::format("step {} asked for a batch of another strategy's data set", step()),
                     "distribute the data set by the strategy of the step");
  }
  if (std::ranges::find(step_.taken, data.identity()) != step_.taken.end()) {
    throw UsageError("LS-BATCH", fmt::format("step {} asked a data set for a second batch", step()),
                     "take one batch of each data set in a step, and schedule a step for each batch; "
                     "a larger .global_batch makes batches larger");
  }
  const int64_t index = shared.in_rounds ? step() / shared.workers : step();
  Batch batch = shared.batches.batch(data, index, step_.part);
  step_.taken.push_back(data.identity());
  step_.share =
      batch.global_size == 0 ? 0 : static_cast<double>(batch.samples()) / static_cast<double>(batch.global_size);
  if (shared.digests) step_.data = internal::digest_with(step_.data, batch);
  return batch;
}

void WorkerContext::take_own_stream() const {
  check_is_no_evaluation("WorkerStreams::next", "use the batch that the function is given");
  step_.took_stream = true;
}

void WorkerContext::note_batch(const Batch& batch) const {
  if (task_.shared().digests) step_.data = internal::digest_with(step_.data, batch);
}

at::Tensor WorkerContext::rows_of(const std::shared_ptr<internal::TableState>& table, const at::Tensor& ids) {
  check_is_current("Embedding::look_up");
  return task_.rows_of(step_, table, ids);
}

void* WorkerContext::module_of(const std::shared_ptr<internal::ModuleBinding>& binding,
                               internal::FunctionRef<MadeModule()> make) {
  check_is_current("model(ctx)");
  return task_.module_of(step_, binding, make);
}

at::Tensor WorkerContext::value_of(const Variable& variable) {
  check_is_current("Variable::value");
  return task_.value_of(step_, variable);
}

void WorkerContext::change(const Variable& variable, Change change, const at::Tensor& value) {
  check_is_current("Variable::assign");
  if (step_.has_pushed) {
    throw UsageError("LS-PUSH",
                     fmt::format("step {} changed variable '{}' after it had pushed", step(), variable.name()),
                     "change variables before ctx.push(), which sends the changes");
  }
  at::Tensor mine = task_.value_of(step_, variable);
  const at::NoGradGuard no_grad;
  const at::Tensor given = value.detach().to(mine.scalar_type()).expand(mine.sizes()).clone();
  switch (change) {
    case Change::kAssign: mine.copy_(given); break;
    case Change::kAdd: mine.add_(given); break;
    case Change::kSubtract: mine.sub_(given); break;
  }
  step_.changed[mine.unsafeGetTensorImpl()] = static_cast<int64_t>(mine._version());
  // The buffers of modules that the step has used travel as they are.
  if (!variable.state().on_write() && task_.has_in_module(step_, variable)) return;
  step_.changes.push_back({variable, change, given});
}

}  // namespace lockstep
