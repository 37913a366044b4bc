// What a program changes of an optimizer beside its step: step counts and settings, which a failed run rolls back,
// and gradients that it drops.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/core/error.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal {

void OptimizerState::zero_grad(const ReplicaContext& context) {
  check_context(context, "optimizer.zero_grad");
  const int64_t r = ContextAccess::local_index(context);
  for (std::size_t i = 0; i < variables_.size(); ++i) gradients_.release(i, r);
  watch_.forget(r);
  OfReplica& replica = replicas_[static_cast<std::size_t>(r)];
  replica.consumed = ContextAccess::scaled_backwards(context);
  replica.dropped = true;
  replica.drops_next = false;
}

bool OptimizerState::drops_next() const {
  return std::all_of(replicas_.begin(), replicas_.end(), [](const OfReplica& replica) { return replica.drops_next; });
}

const GroupRule& OptimizerState::rule(int64_t group) const {
  if (group >= 0 && group < num_groups()) return *rules_[static_cast<std::size_t>(group)];
  throw UsageError("LS-OPTION", fmt::format("group {} was asked for, and the optimizer has {}", group, num_groups()),
                   fmt::format("choose a group from 0 to {}", num_groups() - 1));
}

void OptimizerState::set(const RuleSettings& settings, int64_t group) {
  keep_before();
  rules_[static_cast<std::size_t>(group)]->set(settings);
  follow_schedules();
}

void OptimizerState::set_schedule(Schedule schedule, int64_t group) {
  keep_before();
  schedules_[static_cast<std::size_t>(group)] = std::move(schedule);
  follow_schedules();
}

int64_t OptimizerState::applied_steps() const { return *std::max_element(steps_.begin(), steps_.end()) + extra_steps_; }

void OptimizerState::set_extra_steps(int64_t steps) {
  if (steps < 0) {
    throw UsageError("LS-STATE-MISFIT", fmt::format("'{}' was given {} extra steps", name_, steps),
                     "give what state() or state_items() gave");
  }
  keep_before();
  extra_steps_ = steps;
  follow_schedules();
}

void OptimizerState::follow_schedules() noexcept {
  schedule_error_ = nullptr;
  try {
    for (std::size_t g = 0; g < schedules_.size(); ++g) {
      if (schedules_[g]) rules_[g]->set_learning_rate(rate_of(schedules_[g], applied_steps(), name_));
    }
  } catch (...) {
    schedule_error_ = std::current_exception();
  }
}

void OptimizerState::set_steps(std::size_t i, int64_t steps) {
  if (steps < 0) {
    throw UsageError("LS-STATE-MISFIT",
                     fmt::format("variable '{}' was given {} as its count of steps", variables_[i]->name(), steps),
                     "give what state() or state_items() gave");
  }
  keep_before();
  steps_[i] = steps;
  follow_schedules();
}

void OptimizerState::keep_before() {
  if (!group_->running() || before_) return;
  before_.emplace(Before{steps_, extra_steps_, {}, schedules_});
  for (const auto& one : rules_) before_->settings.push_back(one->settings());
  ++counts_->written;
}

void OptimizerState::take_before() {
  if (before_) --counts_->written;
  before_.reset();
}

void OptimizerState::undo_run() {
  if (exchange_) exchange_->forget_gradients();
  if (!before_) return;
  steps_ = before_->steps;
  extra_steps_ = before_->extra_steps;
  schedules_ = std::move(before_->schedules);
  for (std::size_t g = 0; g < rules_.size(); ++g) rules_[g]->set(before_->settings[g]);
  follow_schedules();
  take_before();
}

void OptimizerState::end_run() { take_before(); }

}  // namespace lockstep::internal
