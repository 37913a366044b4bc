#include "lockstep/optim/optimizer.h"

#include "lockstep/optim/optimizer_state.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep {

using internal::CallScope;

StepInfo Optimizer::step(const ReplicaContext& context, StepOptions options) const {
  return state_->step(context, options);
}

void Optimizer::zero_grad(const ReplicaContext& context) const { state_->zero_grad(context); }

double Optimizer::read_learning_rate(int64_t group) const {
  const CallScope call(*state_->group(), "Optimizer::learning_rate",
                       "leave the learning rate alone: it changes between steps");
  return state_->rule(group).learning_rate();
}

void Optimizer::set_learning_rate(double value, int64_t group) const {
  const CallScope call(*state_->group(), "Optimizer::learning_rate",
                       "leave the learning rate alone: it changes between steps");
  internal::check_learning_rate(value);
  if (group != -1) return state_->rule(group).set_learning_rate(value);
  for (int64_t g = 0; g < state_->num_groups(); ++g) state_->rule(g).set_learning_rate(value);
}

const std::vector<Variable>& Optimizer::slots() const { return state_->slots(); }

std::map<std::string, at::Tensor> Optimizer::state() const {
  const CallScope call(*state_->group(), "Optimizer::state", "use slots() with value(ctx)");
  return state_->state();
}

void Optimizer::load(const std::map<std::string, at::Tensor>& state) const {
  const CallScope call(*state_->group(), "Optimizer::load", "load between steps");
  state_->load(state);
}

}  // namespace lockstep
