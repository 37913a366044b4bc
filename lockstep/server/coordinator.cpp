#include "lockstep/server/coordinator.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <string>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/data/deal/epoch_look.h"
#include "lockstep/server/local/chief_task.h"
#include "lockstep/server/local/coordinated_run.h"
#include "lockstep/server/local/evaluation.h"

namespace lockstep {

namespace internal::inline server {

Payload wait_for_result(const std::shared_ptr<ScheduledStep>& step) {
  static const Payload nothing = std::make_shared<StepValue>();
  Payload result = step->chief->result_of(*step);
  return result ? result : nothing;
}

Payload result_at_hand(const ScheduledStep& step) { return step.result; }

uint64_t bytes_of_argument(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  if (tensor.layout() == at::kStrided) return tensor.nbytes();
  if (tensor.is_sparse()) return tensor._indices().nbytes() + tensor._values().nbytes();
  return static_cast<uint64_t>(tensor.numel()) * tensor.element_size();
}

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

void require_step_of(const ChiefTask& chief, const void* owner, const std::string& name) {
  if (owner == chief.owner()) return;
  throw UsageError("LS-OTHER-STRATEGY", "the step '" + name + "' of another strategy was scheduled",
                   "schedule steps that this coordinator's strategy has named");
}

std::shared_ptr<ScheduledStep> schedule_call(CoordinatedRun& run, uint32_t kind, StepCall call, uint64_t bytes,
                                             const std::vector<std::shared_ptr<ScheduledStep>>& after) {
  run.before_schedule(call);
  StepRequest request;
  request.kind = kind;
  request.arguments = std::make_shared<StepCall>(std::move(call));
  request.argument_bytes = bytes;
  return run.chief().schedule(std::move(request), after);
}

at::Tensor tensor_of(double number) { return at::scalar_tensor(number, at::kDouble); }

namespace {

/// Adds up tensors by their weights.
class WeightedSum {
 public:
  void add(const at::Tensor& value, double weight) {
    if (!value.defined() || value.is_sparse() || value.is_complex()) {
      throw UsageError("LS-EVALUATE", "an evaluation's function returned a tensor that has no mean",
                       "return the mean over the part, a dense tensor of real numbers");
    }
    if (!sum_.defined()) {
      type_ = value.scalar_type();
      sum_ = at::zeros(value.sizes(), at::kDouble);
    } else if (value.sizes() != sum_.sizes()) {
      throw UsageError("LS-EVALUATE",
                       fmt::format("an evaluation's function returned tensors of {} and of {} elements, in {} and {} "
                                   "dimensions",
                                   sum_.numel(), value.numel(), sum_.dim(), value.dim()),
                       "return the mean over the part, of the same shape for all parts");
    }
    sum_ += value.to(at::kDouble) * weight;
    weights_ += weight;
  }
  at::Tensor mean() const {
    const at::Tensor mean = sum_ / weights_;
    return at::isFloatingType(type_) ? mean.to(type_) : mean;
  }
  bool is_empty() const { return !sum_.defined(); }

 private:
  at::ScalarType type_ = at::kDouble;
  at::Tensor sum_;
  double weights_ = 0;
};

}  // namespace

EvaluateFunction mean_of_part(std::function<at::Tensor(WorkerContext&, const Batch&)> fn) {
  return [fn = std::move(fn)](WorkerContext& context, const Batch& part) -> PartResult {
    if (part.samples() == 0) return {};
    const at::Tensor result = fn(context, part);
    return result.defined() ? PartResult{copied(result)} : PartResult();
  };
}

at::Tensor mean_over(CoordinatedRun& run, const DistributedDataset& data, bool returns, std::optional<uint32_t> kind,
                     const std::function<at::Tensor(WorkerContext&, const Batch&)>& fn) {
  EpochLook look(data, 0);
  const auto next = [&] { return look.next(); };
  WeightedSum sum;
  const at::NoGradGuard no_grad;
  evaluate_on_workers(run, kind, next, mean_of_part(fn),
                      [&](const PerReplica<Batch>& batch, const std::vector<PartResult>& results) {
                        std::size_t r = 0;
                        for (const Batch& part : batch) {
                          const PartResult& result = results[r++];
                          if (!result.empty()) sum.add(result.front(), static_cast<double>(part.samples()));
                        }
                      });
  if (!returns) return {};
  if (sum.is_empty()) {
    throw DataError("LS-NO-SAMPLES", "Coordinator::evaluate was given a data set without samples",
                    "give it samples, or a function that returns nothing");
  }
  return sum.mean();
}

}  // namespace internal::server

Coordinator::Coordinator(internal::CoordinatedRun& run) : chief_(run.chief().shared_from_this()), run_(run) {}

internal::CoordinatedRun& Coordinator::run() const {
  chief_->require_not_ended();
  return run_;
}

void Coordinator::join() {
  chief_->join();
  run().catch_up();  // so that every later step sees what these have pushed
}

bool Coordinator::done() { return chief_->done(); }
void Coordinator::cancel() { chief_->cancel(); }
int64_t Coordinator::steps() const { return chief_->steps(); }

}  // namespace lockstep
