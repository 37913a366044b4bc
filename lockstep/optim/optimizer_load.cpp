// What an optimizer gives to be saved, and takes back.
#include <ATen/ATen.h>

#include <map>
#include <string>
#include <utility>

#include "lockstep/comm/agreement.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/variable/value_digests.h"

namespace lockstep::internal {

namespace {

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

std::map<std::string, at::Tensor> OptimizerState::state() const {
  SavedState values;
  values.steps = steps_;
  for (const NamedSlot& slot : named_slots_) values.slots.push_back(slot.variable.state().read());
  for (const auto& one : rules_) values.settings.push_back(one->settings());
  values.extra_steps = extra_steps_;
  for (int64_t g = 0; g < num_groups(); ++g) values.has_schedule.push_back(has_schedule(g));
  return named_state(values, named_slots_, variables_, rules_);
}

void OptimizerState::load(const std::map<std::string, at::Tensor>& state) {
  SavedState values;
  ValueDigests digests(*group_);
  const auto all = agree_on_call(group_->rounds(), {.call = "Optimizer::load", .name = name_, .step = group_->step()},
                                 [&](Proposal& mine) {
                                   for (const Variable& slot : slots_)
                                     slot.state().require_own_value("Optimizer::load");
                                   values = values_of(state, named_slots_, variables_, rules_, name_);
                                   for (std::size_t s = 0; s < slots_.size(); ++s) {
                                     if (slots_[s].state().on_write()) digests.add(slots_[s].name(), values.slots[s]);
                                   }
                                   digests.add("step counts", at::tensor(values.steps, at::kLong));
                                   digests.add("extra steps", at::scalar_tensor(values.extra_steps, at::kLong));
                                   digests.add("learning rates and other options", tensor_of(values.settings));
                                   digests.add("which groups have schedules", tensor_of(values.has_schedule));
                                   digests.fill_in(mine);
                                 });
  digests.require_equal(all, "Optimizer::load");
  // Nothing is refused from here on.
  keep_before();
  for (std::size_t s = 0; s < slots_.size(); ++s) slots_[s].state().write(values.slots[s]);
  steps_ = std::move(values.steps);
  extra_steps_ = values.extra_steps;
  for (std::size_t g = 0; g < rules_.size(); ++g) {
    rules_[g]->set(values.settings[g]);
    expect_schedule(values.has_schedule[g] ? 1 : 0, static_cast<int64_t>(g));
  }
  follow_schedules();
}

}  // namespace lockstep::internal
