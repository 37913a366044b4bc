#include "lockstep/optim/optimizer.h"

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/update.h"

namespace lockstep {

using internal::CallScope;

namespace {

constexpr const char* kBetweenSteps = "read or set the learning rate between runs";

/// Where one worker refuses the rate, none sets it.
void check_on_all_workers(const internal::OptimizerState& optimizer, const CallScope& call, double rate) {
  if (!call.is_agreed()) return internal::check_learning_rate(rate);
  internal::ReplicaGroup& group = *optimizer.group();
  internal::agree_on_call(group.rounds(),
                          {.call = "Optimizer::set_learning_rate", .name = optimizer.name(), .step = group.step()},
                          [&](internal::Proposal&) { internal::check_learning_rate(rate); });
}

}  // namespace

internal::OptimizerState& Optimizer::here() const {
  if (state_) return *state_;
  throw UsageError("LS-EMPTY-HANDLE", "an Optimizer that was default-constructed was used",
                   "give it a value first: optimizer = strategy.make_optimizer(model, options)");
}

StepInfo Optimizer::step(const ReplicaContext& context, StepOptions options, const std::source_location& place) const {
  return here().step(context, options, place);
}

void Optimizer::zero_grad(const ReplicaContext& context) const { here().zero_grad(context); }

const std::string& Optimizer::name() const { return here().name(); }

double Optimizer::read_learning_rate(int64_t group) const {
  const CallScope call(*here().group(), "Optimizer::learning_rate", kBetweenSteps, internal::Workers::kThis);
  return here().learning_rate(group);
}

void Optimizer::set_learning_rate(double value) const {
  internal::UpdateScope::require_none("Optimizer::set_learning_rate");
  const CallScope call(*here().group(), "Optimizer::set_learning_rate", kBetweenSteps, internal::Workers::kAll, name());
  check_on_all_workers(here(), call, value);
  for (int64_t group = 0; group < here().num_groups(); ++group) here().set_learning_rate(value, group);
}

void Optimizer::set_learning_rate(double value, int64_t group) const {
  internal::UpdateScope::require_none("Optimizer::set_learning_rate");
  const CallScope call(*here().group(), "Optimizer::set_learning_rate", kBetweenSteps, internal::Workers::kAll, name());
  check_on_all_workers(here(), call, value);
  here().set_learning_rate(value, group);
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
