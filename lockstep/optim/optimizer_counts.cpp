#include "lockstep/optim/optimizer_counts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal {

OptimizerCounts::OptimizerCounts(std::shared_ptr<ReplicaGroup> group, std::string name,
                                 std::vector<std::shared_ptr<VariableState>> variables,
                                 std::vector<std::unique_ptr<GroupRule>> rules, std::vector<std::size_t> rule_of)
    : group_(std::move(group)),
      name_(std::move(name)),
      variables_(std::move(variables)),
      rules_(std::move(rules)),
      rule_of_(std::move(rule_of)),
      steps_(variables_.size(), 0),
      schedules_(rules_.size()) {}

OptimizerCounts::~OptimizerCounts() { forget_before(); }

const GroupRule& OptimizerCounts::rule(int64_t group) const {
  if (group >= 0 && group < num_groups()) return *rules_[static_cast<std::size_t>(group)];
  throw UsageError("LS-OPTION", fmt::format("group {} was asked for, and the optimizer has {}", group, num_groups()),
                   fmt::format("choose a group from 0 to {}", num_groups() - 1));
}

int64_t OptimizerCounts::applied_steps() const {
  return *std::max_element(steps_.begin(), steps_.end()) + extra_steps_;
}

bool OptimizerCounts::count_step(FunctionRef<bool(std::size_t)> updates) {
  const int64_t before = applied_steps();
  bool any = false;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    if (!updates(i)) continue;
    ++steps_[i];
    any = true;
    if (before_) before_->steps[i] = steps_[i];
  }
  if (!any) return false;
  extra_steps_ = 0;
  extra_steps_ = before + 1 - applied_steps();
  if (before_) before_->extra_steps = extra_steps_;
  follow_schedules();
  return true;
}

void OptimizerCounts::require_rates() const {
  if (schedule_error_) std::rethrow_exception(schedule_error_);
}

void OptimizerCounts::set(const RuleSettings& settings, int64_t group) {
  keep_before();
  rules_[static_cast<std::size_t>(group)]->set(settings);
  follow_schedules();
}

void OptimizerCounts::set_schedule(Schedule schedule, int64_t group) {
  keep_before();
  schedules_[static_cast<std::size_t>(group)] = std::move(schedule);
  follow_schedules();
}

void OptimizerCounts::set_steps(std::size_t i, int64_t steps) {
  if (steps < 0) {
    throw UsageError("LS-STATE-MISFIT",
                     fmt::format("variable '{}' was given {} as its count of steps", variables_[i]->name(), steps),
                     "give what state() or state_items() gave");
  }
  keep_before();
  steps_[i] = steps;
  follow_schedules();
}

void OptimizerCounts::set_extra_steps(int64_t steps) {
  if (steps < 0) {
    throw UsageError("LS-STATE-MISFIT", fmt::format("'{}' was given {} extra steps", name_, steps),
                     "give what state() or state_items() gave");
  }
  keep_before();
  extra_steps_ = steps;
  follow_schedules();
}

void OptimizerCounts::load(std::vector<int64_t> steps, int64_t extra_steps, const std::vector<RuleSettings>& settings) {
  keep_before();
  steps_ = std::move(steps);
  extra_steps_ = extra_steps;
  for (std::size_t g = 0; g < rules_.size(); ++g) rules_[g]->set(settings[g]);
  follow_schedules();
}

void OptimizerCounts::follow_schedules() noexcept {
  schedule_error_ = nullptr;
  try {
    for (std::size_t g = 0; g < schedules_.size(); ++g) {
      if (schedules_[g]) rules_[g]->set_learning_rate(rate_of(schedules_[g], applied_steps(), name_));
    }
  } catch (...) {
    schedule_error_ = std::current_exception();
  }
}

void OptimizerCounts::keep_before() {
  if (!group_->running() || before_) return;
  before_.emplace(Before{steps_, extra_steps_, {}, schedules_});
  for (const auto& one : rules_) before_->settings.push_back(one->settings());
  ++variables_.front()->counts()->written;
}

void OptimizerCounts::forget_before() {
  if (before_) --variables_.front()->counts()->written;
  before_.reset();
}

void OptimizerCounts::undo_run() {
  if (!before_) return;
  steps_ = before_->steps;
  extra_steps_ = before_->extra_steps;
  schedules_ = std::move(before_->schedules);
  for (std::size_t g = 0; g < rules_.size(); ++g) rules_[g]->set(before_->settings[g]);
  follow_schedules();
  forget_before();
}

}  // namespace lockstep::internal
