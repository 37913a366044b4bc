// What an optimizer counts and is set to: updates, rules with their settings, and schedules; and how a run that fails
// rolls them back.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/optim/rules/group_rule.h"
#include "lockstep/optim/rules/schedule.h"
#include "lockstep/optim/saved_state.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica

namespace lockstep::internal::inline optim {

/// Changed while all replicas are at rest; replicas read rule_of() and require_rates() as they come to a step.
class OptimizerCounts {
 public:
  /// `rule_of[i]` is the index of variable i's rule. `name` is the optimizer's.
  OptimizerCounts(std::shared_ptr<ReplicaGroup> group, std::string name,
                  std::vector<std::shared_ptr<VariableState>> variables, std::vector<std::unique_ptr<GroupRule>> rules,
                  std::vector<std::size_t> rule_of);
  ~OptimizerCounts();
  OptimizerCounts(const OptimizerCounts&) = delete;
  OptimizerCounts& operator=(const OptimizerCounts&) = delete;

  int64_t num_groups() const { return static_cast<int64_t>(rules_.size()); }
  const std::vector<std::unique_ptr<GroupRule>>& rules() const { return rules_; }
  /// A UsageError where there is no such group.
  const GroupRule& rule(int64_t group) const;
  /// Of variable i.
  const GroupRule& rule_of(std::size_t i) const { return *rules_[rule_of_[i]]; }

  /// How often variable i was updated.
  int64_t steps(std::size_t i) const { return steps_[i]; }
  const std::vector<int64_t>& steps() const { return steps_; }
  /// How many steps the optimizer has applied. Steps that failed or were skipped do not count.
  int64_t applied_steps() const;
  /// How many more these are than the updates of the variable that was updated most often.
  int64_t extra_steps() const { return extra_steps_; }

  /// Counts a step that has updated the variables that `updates` says. Whether there were any.
  bool count_step(FunctionRef<bool(std::size_t)> updates);
  /// Throws what a schedule has thrown for the next step.
  void require_rates() const;
  /// Whether the group's learning rate follows a schedule; or did so in the state that was loaded last, and since then
  /// the program has set neither a schedule nor a rate, and no step has begun.
  bool has_schedule(int64_t group) const;
  /// The schedule that the group's learning rate follows; empty where there is none.
  const Schedule& schedule(int64_t group) const { return schedules_[static_cast<std::size_t>(group)].rate_of_step; }
  /// Another number after each call that has set a schedule or taken one away.
  uint64_t schedule_version() const { return schedule_version_; }
  /// The learning rates that the schedules of groups give for some steps, for comparisons; empty where none has one.
  std::string schedule_text() const;
  /// Makes a finding, once, of groups that had a schedule in the state that was loaded, and have none here.
  void report_missing_schedules();

  // Outside of steps, or from a merge function: then undo_run() rolls it back.

  /// Gives the rules of as many groups, from `first` on, these settings, which were checked before. Where `schedule` is
  /// given, their learning rate is from now on (*schedule)(applied_steps()), or, where it is empty, follows none.
  /// Otherwise the schedule that a group has goes on setting it.
  void set(int64_t first, std::span<const RuleSettings> settings, const Schedule* schedule = nullptr);
  /// Of a state that is being loaded: 1 where the group has a schedule there, 0 where it has none, otherwise a
  /// UsageError. Where the program has not set one here before, the next step asks for it.
  void expect_schedule(double had, int64_t group);
  // Each a UsageError for what is no count of steps.
  void set_steps(std::size_t i, int64_t steps);
  void set_extra_steps(double steps);
  /// All of a state at once, of which the slots are loaded already; nothing is refused.
  void load(SavedState state);
  /// Call before anything else is loaded in a run.
  void keep_before();

  /// After a run that failed: rolls back what was set in it, except for the counts of variables that a completed step
  /// has updated since.
  void undo_run();
  /// After a run that succeeded.
  void end_run() { forget_before(); }

 private:
  struct GroupSchedule {
    Schedule rate_of_step;    // empty where there is none
    bool is_missing = false;  // the state that was loaded had one; until a step says so, or one or a rate is set
  };
  /// Step counts and settings as they were before this run changed them.
  struct Before {
    std::vector<int64_t> steps;
    int64_t extra_steps;
    std::vector<RuleSettings> settings;
    std::vector<GroupSchedule> schedules;
  };

  void forget_before();
  /// Sets the learning rates of the next step. What a schedule throws, or a rate that none can have, is thrown by that
  /// step.
  void follow_schedules() noexcept;

  const std::shared_ptr<ReplicaGroup> group_;
  const std::string name_;
  const std::vector<std::shared_ptr<VariableState>> variables_;
  std::vector<std::unique_ptr<GroupRule>> rules_;
  const std::vector<std::size_t> rule_of_;  // by variable
  std::vector<int64_t> steps_;              // by variable
  int64_t extra_steps_ = 0;
  std::vector<GroupSchedule> schedules_;  // by group
  uint64_t schedule_version_ = 0;
  std::exception_ptr schedule_error_;  // of the next step
  std::optional<Before> before_;
};

}  // namespace lockstep::internal::optim
