#include "lockstep/optim/optimizer_slots.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <set>

#include "lockstep/core/error.h"
#include "lockstep/memory/lazy_zeros.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline optim {

namespace {

void check_variables(const ReplicaGroup& group, const std::vector<std::shared_ptr<VariableState>>& variables) {
  std::set<const VariableState*> seen;
  for (const auto& variable : variables) {
    const auto refuse = [&](ErrorCode code, const std::string& why, const char* remedy) {
      throw UsageError(code, fmt::format("an optimizer was given variable '{}', which {}", variable->name(), why),
                       remedy);
    };
    if (variable->group().get() != &group)
      refuse("LS-OTHER-STRATEGY", "belongs to another strategy", "make both with the same strategy");
    if (!seen.insert(variable.get()).second)
      refuse("LS-VARIABLE-TWICE", "is listed twice", "put each variable into one group");
    const at::ScalarType type = variable->like().scalar_type();
    const bool local = variable->is_trained_locally();
    if (!(variable->on_write() || local) || !is_trainable_type(type)) {
      refuse("LS-VARIABLE-KIND",
             fmt::format("is {}", variable->on_write() || local ? c10::toString(type) : "sync-on-read"),
             "leave it out of the list: optimizers update mirrored variables of float64, float32, bfloat16, "
             "float16, complex128 and complex64");
    }
    if (local != variables.front()->is_trained_locally()) {
      refuse("LS-VARIABLE-KIND",
             fmt::format("is {} and '{}' is not", local ? "trained locally" : "mirrored", variables.front()->name()),
             "make an optimizer for each kind");
    }
  }
}

/// A slot of a variable: one memory for all replicas, however many copies the variable has; for a variable that is
/// trained locally, one memory for each replica.
std::shared_ptr<VariableState> make_slot(const VariableState& variable, const SlotSpec& spec, std::string name,
                                         const Placement& placement, bool sliced) {
  const c10::InferenceMode normal(false);  // a tensor of inference mode could not be loaded
  const at::NoGradGuard no_grad;
  const bool local = variable.is_trained_locally();
  std::vector<at::Tensor> components;
  for (int64_t r = 0; r < variable.num_components(); ++r) {
    const at::Tensor& like = variable.like();
    const bool own = local || r == 0;
    if (!own) {
      components.push_back(components.front());
    } else if (sliced) {
      components.push_back(lazy_zeros_like(like));
    } else {
      components.push_back(at::empty_strided(like.sizes(), like.strides(), like.options()));
      as_numbers(components.back()).fill_(spec.initial);
    }
  }
  VariableOptions options{.name = std::move(name), .trainable = false};
  options.synchronization = local ? VariableSynchronization::kOnRead : VariableSynchronization::kOnWrite;
  if (local) options.aggregation = VariableAggregation::kMean;
  VariableState::Origin origin{.slot = true, .local = local};
  if (!variable.devices().empty()) {
    const NewVariable what{.name = options.name,
                           .sizes = variable.like().sizes(),
                           .dtype = variable.like().scalar_type(),
                           .slot_of = variable.name()};
    origin.devices = {placement.slot_device(what, variable.devices())};
    require_host_memory(origin.devices.front());
  }
  return make_variable_state(variable.group(), variable.counts(), std::move(options), components, origin);
}

}  // namespace

std::vector<std::shared_ptr<VariableState>> variables_of(const ReplicaGroup& of, const std::vector<RuleGroup>& groups) {
  std::vector<std::shared_ptr<VariableState>> all;
  for (const RuleGroup& group : groups) {
    for (const Variable& variable : group.variables) {
      variable.state();  // throws where it is empty
      all.push_back(variable.shared_state());
    }
  }
  if (all.empty()) throw UsageError("LS-NO-VARIABLES", "an optimizer was given no variables", "give it at least one");
  check_variables(of, all);
  return all;
}

std::vector<UpdateTarget> make_targets(const std::vector<RuleGroup>& groups,
                                       FunctionRef<std::string(const VariableState&)> prefix_of,
                                       const Placement& placement, bool sliced) {
  std::vector<UpdateTarget> targets;
  for (const RuleGroup& group : groups) {
    for (const Variable& variable : group.variables) {
      UpdateTarget target{variable.shared_state(), {}, group.rule->kind(), group.rule->own()};
      for (const SlotSpec& spec : group.rule->slots()) {
        target.slots.push_back(
            make_slot(*target.variable, spec, prefix_of(*target.variable) + spec.name, placement, sliced));
      }
      targets.push_back(std::move(target));
    }
  }
  return targets;
}

}  // namespace lockstep::internal::optim
