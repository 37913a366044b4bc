// What a program changes of an optimizer beside its step: step counts and settings, which a failed run rolls back,
// and gradients that it drops.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

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

void OptimizerState::set(int64_t first, std::span<const RuleSettings> settings, const Schedule* schedule) {
  keep_before();
  for (std::size_t k = 0; k < settings.size(); ++k) {
    const std::size_t g = static_cast<std::size_t>(first) + k;
    rules_[g]->set(settings[k]);
    if (schedule != nullptr) schedules_[g] = {.rate_of_step = *schedule, .is_missing = false};
  }
  follow_schedules();
}

bool OptimizerState::has_schedule(int64_t group) const {
  const GroupSchedule& one = schedules_[static_cast<std::size_t>(group)];
  return one.rate_of_step || one.is_missing;
}

void OptimizerState::expect_schedule(double had, int64_t group) {
  if (had != 0 && had != 1) {
    throw UsageError("LS-STATE-MISFIT",
                     fmt::format("whether group {} of '{}' has a schedule was given as {}", group, name_, had),
                     "give what state() or state_items() gave");
  }
  keep_before();
  GroupSchedule& one = schedules_[static_cast<std::size_t>(group)];
  one.is_missing = had == 1 && !one.rate_of_step;
}

int64_t OptimizerState::applied_steps() const { return *std::max_element(steps_.begin(), steps_.end()) + extra_steps_; }

void OptimizerState::set_extra_steps(double steps) {
  if (!(steps >= 0 && steps <= static_cast<double>(kMostSteps) && steps == std::floor(steps))) {
    throw UsageError("LS-STATE-MISFIT", fmt::format("'{}' was given {} extra steps, which is no count", name_, steps),
                     "give what state() or state_items() gave");
  }
  keep_before();
  extra_steps_ = static_cast<int64_t>(steps);
  follow_schedules();
}

void OptimizerState::follow_schedules() noexcept {
  schedule_error_ = nullptr;
  const auto has_one = [](const GroupSchedule& one) { return static_cast<bool>(one.rate_of_step); };
  if (std::none_of(schedules_.begin(), schedules_.end(), has_one)) return;
  const int64_t k = applied_steps();
  try {
    for (std::size_t g = 0; g < schedules_.size(); ++g) {
      if (has_one(schedules_[g])) rules_[g]->set_learning_rate(rate_of(schedules_[g].rate_of_step, k, name_));
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
