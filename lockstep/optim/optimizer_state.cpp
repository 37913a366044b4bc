#include "lockstep/optim/optimizer_state.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/core/torch_compat.h"
#include "lockstep/optim/forms/sliced_update.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/value_digests.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline optim {

namespace {

void require_sliceable(const ReplicaGroup& group, const std::vector<std::shared_ptr<VariableState>>& variables,
                       const std::string& name) {
  const std::string why = SlicedUpdate::obstacle(group, variables);
  if (why.empty()) return;
  throw UsageError(
      "LS-UPDATE-FORM",
      fmt::format("the slots of '{}' are to be sliced, and workers cannot divide its update: {}", name, why),
      "leave .slots whole: see docs/multi-worker.md");
}

/// What each slot begins with, by variable and slot.
std::vector<std::vector<double>> initial_slots(const std::vector<RuleGroup>& groups) {
  std::vector<std::vector<double>> initial;
  for (const RuleGroup& group : groups) {
    std::vector<double> of_rule;
    for (const SlotSpec& spec : group.rule->slots()) of_rule.push_back(spec.initial);
    initial.insert(initial.end(), group.variables.size(), of_rule);
  }
  return initial;
}

at::Tensor tensor_of(const std::vector<RuleSettings>& groups) {
  std::vector<double> numbers;
  for (const RuleSettings& one : groups) {
    numbers.insert(numbers.end(), {one.learning_rate, one.weight_decay, one.momentum});
  }
  return at::tensor(numbers, at::kDouble);
}

at::Tensor tensor_of(const std::vector<bool>& flags) {
  return at::tensor(std::vector<int64_t>(flags.begin(), flags.end()), at::kLong);
}

}  // namespace

OptimizerState::OptimizerState(OptimizerSetup setup, std::vector<RuleGroup> groups, const Placement& placement,
                               FunctionRef<bool(const VariableState&)> has_optimizer)
    : group_(setup.group), name_(setup.name), variables_(variables_of(*group_, groups)) {
  if (group_->num_workers() == 1) setup.slots = Slots::kWhole;
  const bool slices = setup.slots == Slots::kSliced;
  if (slices) require_sliceable(*group_, variables_, name_);
  const Digest digest = digest_of(variables_, groups);
  const std::vector<std::vector<double>> initial = initial_slots(groups);
  const auto prefix_of = [&](const VariableState& variable) {
    return variable.name() + (has_optimizer(variable) ? "/" + name_ + "/" : "/");
  };
  std::vector<UpdateTarget> targets = make_targets(groups, prefix_of, placement, slices);
  for (const UpdateTarget& target : targets) {
    for (const auto& slot : target.slots) {
      slots_.emplace_back(slot);
      const std::string own = slot->name().substr(slot->name().rfind('/'));
      named_slots_.push_back({target.variable->name() + own, slots_.back()});
    }
  }
  std::vector<std::unique_ptr<GroupRule>> rules;
  std::vector<std::size_t> rule_of;
  for (RuleGroup& one : groups) {
    rule_of.insert(rule_of.end(), one.variables.size(), rules.size());
    rules.push_back(std::move(one.rule));
  }
  counts_ = std::make_unique<OptimizerCounts>(group_, name_, variables_, std::move(rules), std::move(rule_of));
  step_ = std::make_unique<OptimizerStep>(setup, std::move(targets), digest, initial, *counts_);
  forget_autocast_weights();  // for the first time it takes memory, which the end of a step must not need
}

void OptimizerState::gather_slots() {
  if (SlicedSlots* const slots = sliced_slots()) slots->gather();
}

std::map<std::string, at::Tensor> OptimizerState::state() const {
  SavedState values;
  values.steps = counts_->steps();
  for (const NamedSlot& slot : named_slots_) values.slots.push_back(slot.variable.state().read());
  for (const auto& one : counts_->rules()) values.settings.push_back(one->settings());
  values.extra_steps = counts_->extra_steps();
  for (int64_t g = 0; g < counts_->num_groups(); ++g) values.has_schedule.push_back(counts_->has_schedule(g));
  return named_state(values, named_slots_, variables_, counts_->rules());
}

void OptimizerState::load(const std::map<std::string, at::Tensor>& state) {
  SavedState values;
  ValueDigests digests(*group_);
  const auto fill_in = [&](Proposal& mine) {
    for (const Variable& slot : slots_) slot.state().require_own_value("Optimizer::load");
    values = values_of(state, named_slots_, variables_, counts_->rules(), name_);
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      if (slots_[s].state().on_write()) digests.add(slots_[s].name(), values.slots[s]);
    }
    digests.add("step counts", at::tensor(values.steps, at::kLong));
    digests.add("extra steps", at::scalar_tensor(values.extra_steps, at::kLong));
    digests.add("learning rates and other options", tensor_of(values.settings));
    digests.add("which groups have schedules", tensor_of(values.has_schedule));
    digests.fill_in(mine);
  };
  const auto all =
      agree_on_call(group_->rounds(), {.call = "Optimizer::load", .name = name_, .step = group_->step()}, fill_in);
  digests.require_equal(all, "Optimizer::load");
  // Nothing is refused from here on.
  counts_->keep_before();
  for (std::size_t s = 0; s < slots_.size(); ++s) slots_[s].state().write(values.slots[s]);
  counts_->load(std::move(values));
}

}  // namespace lockstep::internal::optim
