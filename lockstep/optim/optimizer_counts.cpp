#include "lockstep/optim/optimizer_counts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep::internal::inline optim {

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

void OptimizerCounts::set(int64_t first, std::span<const RuleSettings> settings, const Schedule* schedule) {
  keep_before();
  for (std::size_t k = 0; k < settings.size(); ++k) {
    const std::size_t g = static_cast<std::size_t>(first) + k;
    rules_[g]->set(settings[k]);
    if (schedule == nullptr) continue;
    if (*schedule || schedules_[g].rate_of_step) ++schedule_version_;
    schedules_[g] = {.rate_of_step = *schedule, .is_missing = false};
  }
  follow_schedules();
}

bool OptimizerCounts::has_schedule(int64_t group) const {
  const GroupSchedule& one = schedules_[static_cast<std::size_t>(group)];
  return one.rate_of_step || one.is_missing;
}

std::string OptimizerCounts::schedule_text() const {
  std::string text;
  for (std::size_t g = 0; g < schedules_.size(); ++g) {
    if (!schedules_[g].rate_of_step) continue;
    text += fmt::format("{}group {}", text.empty() ? "" : ", ", g);
    for (const int64_t step : {0, 1, 2, 10, 100, 1000, 10000, 100000}) {
      try {
        text += fmt::format(" {}", schedules_[g].rate_of_step(step));
      } catch (...) {  // what it throws is the error of the step that asks for it
        text += " none";
      }
    }
  }
  return text;
}

void OptimizerCounts::expect_schedule(double had, int64_t group) {
  if (had != 0 && had != 1) {
    throw UsageError("LS-STATE-MISFIT",
                     fmt::format("whether group {} of '{}' has a schedule was given as {}", group, name_, had),
                     "give what state() or state_items() gave");
  }
  keep_before();
  GroupSchedule& one = schedules_[static_cast<std::size_t>(group)];
  one.is_missing = had == 1 && !one.rate_of_step;
}

void OptimizerCounts::report_missing_schedules() {
  std::vector<std::size_t> groups;
  for (std::size_t g = 0; g < schedules_.size(); ++g) {
    if (std::exchange(schedules_[g].is_missing, false)) groups.push_back(g);
  }
  if (groups.empty()) return;
  std::vector<double> rates;
  for (const std::size_t g : groups) rates.push_back(rules_[g]->learning_rate());
  group_->findings().add("LS-SCHEDULE-MISSING", name_, group_->step(), [&] {
    return fmt::format(
        "step {}: '{}' goes on from a state in which a schedule gave the learning rate of group{} {}, and none was set "
        "here, so that the rate stays {} from now on; a state has no schedules: call {}.set_schedule(schedule) before "
        "the first step, or set_learning_rate, which says that the rate is meant",
        group_->step(), name_, groups.size() == 1 ? "" : "s", fmt::join(groups, ", "), fmt::join(rates, ", "), name_);
  });
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

void OptimizerCounts::set_extra_steps(double steps) {
  if (!(steps >= 0 && steps <= static_cast<double>(kMostSteps) && steps == std::floor(steps))) {
    throw UsageError("LS-STATE-MISFIT", fmt::format("'{}' was given {} extra steps, which is no count", name_, steps),
                     "give what state() or state_items() gave");
  }
  keep_before();
  extra_steps_ = static_cast<int64_t>(steps);
  follow_schedules();
}

void OptimizerCounts::load(SavedState state) {
  keep_before();
  steps_ = std::move(state.steps);
  extra_steps_ = state.extra_steps;
  for (std::size_t g = 0; g < rules_.size(); ++g) {
    rules_[g]->set(state.settings[g]);
    expect_schedule(state.has_schedule[g] ? 1 : 0, static_cast<int64_t>(g));
  }
  follow_schedules();
}

void OptimizerCounts::follow_schedules() noexcept {
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

}  // namespace lockstep::internal::optim
