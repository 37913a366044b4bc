#include "lockstep/train/trainer.h"

#include <c10/util/Type.h>
#include <fmt/format.h>

#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/train/fit.h"
#include "lockstep/train/step/bfloat16_cost.h"
#include "lockstep/train/trainer_state.h"

namespace lockstep {

namespace {

void check(const internal::TrainerSetup& setup) {
  const auto refuse = [](const std::string& fact, const std::string& remedy) {
    throw UsageError("LS-OPTION", fact, remedy);
  };
  if (setup.accumulate < 1) {
    refuse(fmt::format("TrainerOptions::accumulate is {}", setup.accumulate), "give a number from 1");
  }
  if (setup.step && setup.accumulate > 1) {
    refuse("TrainerOptions has a .step and an .accumulate", "let the step accumulate by itself, or leave it out");
  }
  if (setup.step && setup.clip_global_norm) {
    refuse("TrainerOptions has a .step and a .clip_global_norm", "clip in the step, by its optimizer.step(ctx, {...})");
  }
  if (!setup.step && !setup.model) refuse("a Trainer was made without a model and without a .step", "give it one");
  if (!setup.step && !setup.loss) refuse("TrainerOptions has no .loss and no .step", "give it one of them");
  if (!setup.step) internal::require_forward(setup, "a Trainer");
  if (setup.optimizer) setup.optimizer->num_groups();  // an empty handle is refused here
}

void refuse_in_step(const char* call) {
  internal::CallScope::refuse_in_step(call, "it cannot work: call it when run() has returned");
}

/// Where this process is a task that serves another one, does that until the other one's call has ended.
bool has_served(internal::StepRunner& runner) {
  if (!runner.serves()) return false;
  runner.run([] {});
  return true;
}

}  // namespace

namespace internal::inline train {

void throw_other_module_in_forward(const std::type_info& wanted, const std::type_info& given) {
  throw UsageError("LS-OPTION",
                   fmt::format("TrainerOptions::forward takes a {}, and the model's factory returns a {}",
                               c10::demangle(wanted.name()), c10::demangle(given.name())),
                   "give .forward a first parameter of the type that the factory returns, by reference");
}

/// While it lives, the trainer has this fit under way.
class FitUnderWay {
 public:
  FitUnderWay(Fit*& place, Fit& fit) : place_(place) { place_ = &fit; }
  ~FitUnderWay() { place_ = nullptr; }
  FitUnderWay(const FitUnderWay&) = delete;
  FitUnderWay& operator=(const FitUnderWay&) = delete;

 private:
  Fit*& place_;
};

}  // namespace internal::train

Trainer::Trainer(internal::TrainerSetup setup, Strategy& strategy) : strategy_(strategy) {
  check(setup);
  internal::MetricList metrics(std::move(setup.metrics));
  state_ = std::make_unique<State>(State{std::move(setup), std::move(metrics)});
  state_->runner = internal::make_step_runner(strategy, state_->setup, state_->metrics);
  const bool is_of_host = strategy.devices().front().starts_with("cpu");
  if (state_->setup.precision != Precision::kBFloat16 || !strategy.is_chief() || !is_of_host) return;
  if (!internal::has_bfloat16_instructions()) internal::log(LogLevel::kWarning, internal::bfloat16_cost_text());
}

Trainer::~Trainer() = default;

History Trainer::fit(const DistributedDataset& data, FitOptions options) {
  refuse_in_step("Trainer::fit");
  if (state_->fit != nullptr) {
    throw UsageError("LS-NESTED-CALL", "Trainer::fit was called inside a fit of the same trainer",
                     "call it when the first one has returned");
  }
  if (has_served(*state_->runner)) return {};
  internal::Fit fit(*this, *state_, data, std::move(options));
  const internal::FitUnderWay under_way(state_->fit, fit);
  const std::shared_ptr<void> own = state_->runner->own_scope();
  return fit.run();
}

Logs Trainer::evaluate(const DistributedDataset& data) {
  refuse_in_step("Trainer::evaluate");
  if (has_served(*state_->runner)) return {};
  internal::require_numbers(state_->setup, state_->metrics, "Trainer::evaluate");
  internal::require_end(data, "Trainer::evaluate");
  const internal::Totals totals =
      internal::evaluate(strategy_, *state_->runner, state_->setup, state_->metrics, data, {});
  return state_->metrics.logs_of(totals, static_cast<bool>(state_->setup.loss));
}

at::Tensor Trainer::predict(const DistributedDataset& data) {
  refuse_in_step("Trainer::predict");
  if (has_served(*state_->runner)) return {};
  return internal::predict(strategy_, *state_->runner, state_->setup, state_->metrics, data);
}

std::string Trainer::summary() const {
  return state_->setup.model ? state_->setup.model->summary() : "a step of the program's own, without a model\n";
}

internal::Fit& Trainer::fit_under_way(const char* call) const {
  if (state_->fit != nullptr) return *state_->fit;
  throw UsageError("LS-OPTION", fmt::format("{} was called outside of a fit", call), "call it in a callback of a fit");
}

void Trainer::stop(const std::string& why) { fit_under_way("Trainer::stop").stop(why); }
const std::string& Trainer::stopped() const { return state_->stopped; }
void Trainer::log(const std::string& name, double value) { fit_under_way("Trainer::log").log(name, value); }
const FitStatus& Trainer::status() const { return state_->status; }
const History& Trainer::history() const { return state_->history; }
const FitOptions& Trainer::fit_options() const { return fit_under_way("Trainer::fit_options").options(); }
const std::vector<std::string>& Trainer::log_names() const { return state_->log_names; }
std::span<const PerReplica<Batch>> Trainer::batches() const { return fit_under_way("Trainer::batches").batches(); }
void Trainer::keep_gradients() { fit_under_way("Trainer::keep_gradients").keep_gradients(); }
const std::vector<std::pair<std::string, at::Tensor>>& Trainer::gradients() const {
  return fit_under_way("Trainer::gradients").gradients();
}
void Trainer::measure_parts() { fit_under_way("Trainer::measure_parts").measure_parts(); }
Checkpoint Trainer::checkpoint() const { return fit_under_way("Trainer::checkpoint").checkpoint(); }

const Optimizer& Trainer::optimizer() const {
  if (state_->setup.optimizer) return *state_->setup.optimizer;
  throw UsageError("LS-OPTION", "the trainer was made without an optimizer", "use the optimizers of its .step");
}
bool Trainer::has_optimizer() const { return state_->setup.optimizer.has_value(); }

const std::vector<Variable>& Trainer::variables() const {
  static const std::vector<Variable> none;
  return state_->setup.model ? state_->setup.model->variables : none;
}
const std::vector<MetricSpec>& Trainer::metrics() const { return state_->metrics.specs(); }

}  // namespace lockstep
