#include "lockstep/optim/optimizer.h"

#include <fmt/format.h>

#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/replica/step_recorder.h"
#include "lockstep/variable/update.h"

namespace lockstep {

using internal::CallScope;
using internal::GroupRule;
using internal::RuleSettings;

namespace {

/// All that a call is asked for, so that a recorded step knows a call with other options for another one.
std::string text_of(const StepOptions& options) {
  const auto number = [](const std::optional<double>& one) {
    return one ? fmt::format("{}", *one) : std::string("no");
  };
  return fmt::format("({} clip_global_norm, {} clip_value, {:d}{:d}{:d}{:d})", number(options.clip_global_norm),
                     number(options.clip_value), options.check_finite, options.loss_scaled_by_hand,
                     options.gradients_changed_on_purpose, options.skip_non_finite);
}

constexpr const char* kBetweenSteps = "leave the options of an optimizer alone: read or set them between runs";

}  // namespace

internal::OptimizerState& Optimizer::here() const {
  if (state_) return *state_;
  throw UsageError("LS-EMPTY-HANDLE", "an Optimizer that was default-constructed was used",
                   "give it a value first: optimizer = strategy.make_optimizer(model, options)");
}

StepInfo Optimizer::step(const ReplicaContext& context, StepOptions options, const std::source_location& place) const {
  internal::OptimizerState& state = here();
  if (!internal::StepRecorder::current()) return state.step(context, options, place);
  if (options.skip_non_finite)
    internal::refuse_recording("leaves out steps that are not finite, and may look at which");
  internal::RecordedCall call(
      fmt::format("optimizer.step of '{}'{}", name(), text_of(options)), {},
      [kept = state_, options, place](const ReplicaContext& again, std::span<const at::Tensor>) {
        kept->step(again, options, place);
        return std::vector<at::Tensor>();
      });
  const StepInfo info = state.step(context, options, place);
  call.end();
  return info;
}

void Optimizer::zero_grad(const ReplicaContext& context) const {
  internal::OptimizerState& state = here();
  if (!internal::StepRecorder::current()) return state.zero_grad(context);
  internal::RecordedCall call(fmt::format("optimizer.zero_grad of '{}'", name()), {},
                              [kept = state_](const ReplicaContext& again, std::span<const at::Tensor>) {
                                kept->zero_grad(again);
                                return std::vector<at::Tensor>();
                              });
  state.zero_grad(context);
  call.end();
}

const std::string& Optimizer::name() const { return here().name(); }

double Optimizer::read_learning_rate(int64_t group) const {
  const CallScope call(*here().group(), "Optimizer::learning_rate", kBetweenSteps, internal::Workers::kThis);
  return here().counts().rule(group).learning_rate();
}

int64_t Optimizer::num_groups() const { return here().counts().num_groups(); }

double Optimizer::momentum(int64_t group) const {
  const CallScope call(*here().group(), "Optimizer::momentum", kBetweenSteps, internal::Workers::kThis);
  return here().counts().rule(group).settings().momentum;
}

double Optimizer::weight_decay(int64_t group) const {
  const CallScope call(*here().group(), "Optimizer::weight_decay", kBetweenSteps, internal::Workers::kThis);
  return here().counts().rule(group).settings().weight_decay;
}

void Optimizer::set_in_groups(const char* call, std::optional<int64_t> group,
                              internal::FunctionRef<RuleSettings(const GroupRule&)> changed,
                              const Schedule* schedule) const {
  internal::UpdateScope::require_none(call);
  internal::OptimizerState& state = here();
  const CallScope scope(*state.group(), call, kBetweenSteps, internal::Workers::kAll, name());
  const int64_t first = group.value_or(0);
  const int64_t end = group ? first + 1 : state.counts().num_groups();
  std::vector<RuleSettings> settings;
  const auto check = [&] {
    for (int64_t g = first; g < end; ++g) settings.push_back(changed(state.counts().rule(g)));
  };
  // Where a worker or a group refuses the value, none sets it.
  if (scope.is_agreed()) {
    internal::ReplicaGroup& workers = *state.group();
    internal::agree_on_call(workers.rounds(), {.call = call, .name = name(), .step = workers.step()},
                            [&](internal::Proposal&) { check(); });
  } else {
    check();
  }
  state.counts().set(first, settings, schedule);
}

void Optimizer::set_schedule_of(const Schedule& schedule, std::optional<int64_t> group) const {
  const auto at_once = [&](const GroupRule& rule) {
    if (!schedule) {
      throw UsageError("LS-OPTION", fmt::format("'{}' was given an empty schedule", name()),
                       "give a function of the step, such as schedules::cosine(0.1, 1000)");
    }
    RuleSettings settings = rule.settings();
    settings.learning_rate = internal::rate_of(schedule, here().counts().applied_steps(), name());
    return settings;
  };
  set_in_groups("Optimizer::set_schedule", group, at_once, &schedule);
}

namespace {

auto with_learning_rate(double value) {
  return [value](const GroupRule& rule) {
    internal::check_learning_rate(value);
    RuleSettings settings = rule.settings();
    settings.learning_rate = value;
    return settings;
  };
}

auto with_momentum(double value) {
  return [value](const GroupRule& rule) {
    rule.check_momentum(value);
    RuleSettings settings = rule.settings();
    settings.momentum = value;
    return settings;
  };
}

auto with_weight_decay(double value) {
  return [value](const GroupRule& rule) {
    rule.check_weight_decay(value);
    RuleSettings settings = rule.settings();
    settings.weight_decay = value;
    return settings;
  };
}

}  // namespace

void Optimizer::set_learning_rate(double value) const {
  const Schedule none;
  set_in_groups("Optimizer::set_learning_rate", std::nullopt, with_learning_rate(value), &none);
}
void Optimizer::set_learning_rate(double value, int64_t group) const {
  const Schedule none;
  set_in_groups("Optimizer::set_learning_rate", group, with_learning_rate(value), &none);
}
void Optimizer::set_schedule(const Schedule& schedule) const { set_schedule_of(schedule, std::nullopt); }
void Optimizer::set_schedule(const Schedule& schedule, int64_t group) const { set_schedule_of(schedule, group); }
void Optimizer::set_momentum(double value) const {
  set_in_groups("Optimizer::set_momentum", std::nullopt, with_momentum(value));
}
void Optimizer::set_momentum(double value, int64_t group) const {
  set_in_groups("Optimizer::set_momentum", group, with_momentum(value));
}
void Optimizer::set_weight_decay(double value) const {
  set_in_groups("Optimizer::set_weight_decay", std::nullopt, with_weight_decay(value));
}
void Optimizer::set_weight_decay(double value, int64_t group) const {
  set_in_groups("Optimizer::set_weight_decay", group, with_weight_decay(value));
}

const std::vector<Variable>& Optimizer::slots() const { return here().slots(); }

void Optimizer::gather_slots() const {
  internal::UpdateScope::require_none("Optimizer::gather_slots");
  const CallScope call(*here().group(), "Optimizer::gather_slots", "gather slots between runs", internal::Workers::kAll,
                       name());
  here().gather_slots();
}

std::map<std::string, at::Tensor> Optimizer::state() const {
  const CallScope call(*here().group(), "Optimizer::state", "call it between runs", internal::Workers::kAll, name());
  here().gather_slots();
  return here().state();
}

void Optimizer::load(const std::map<std::string, at::Tensor>& state) const {
  internal::UpdateScope::require_none("Optimizer::load");
  const CallScope call(*here().group(), "Optimizer::load", "load between steps", internal::Workers::kAll, name());
  here().load(state);
}

}  // namespace lockstep
