// What stands behind an Optimizer: its variables with their slots and step counts, and the meeting that updates them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/optim/gradient_table.h"
#include "lockstep/optim/fused_update.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/update_rule.h"
#include "lockstep/replica/replica_context.h"

namespace lockstep::internal {

class ReplicaGroup;

/// Variables that are updated by one rule.
struct RuleGroup {
  std::vector<Variable> variables;
  std::unique_ptr<UpdateRule> rule;
};

class OptimizerState {
 public:
  /// Throws a UsageError, naming the variable, for one that is not floating-point, or neither on-write nor trained
  /// apart, or not as the others in that; is of another strategy, or stands in two groups.
  OptimizerState(std::shared_ptr<ReplicaGroup> group, std::vector<RuleGroup> groups);

  /// The contracts are those of Optimizer's members.
  StepInfo step(const ReplicaContext& context, const StepOptions& options);
  void zero_grad(const ReplicaContext& context);
  UpdateRule& rule(int64_t group);
  int64_t num_groups() const { return static_cast<int64_t>(rules_.size()); }
  const std::vector<Variable>& slots() const { return slots_; }
  std::map<std::string, at::Tensor> state() const;
  void load(const std::map<std::string, at::Tensor>& state);
  const std::shared_ptr<ReplicaGroup>& group() const { return group_; }

 private:
  friend class StepMeeting;
  /// A replica's scale_loss calls up to its last step here: from them follows whether it has any weight in this one.
  struct alignas(64) ScaleCalls {
    int64_t all = 0;
    int64_t weighted = 0;
  };

  void check_context(const ReplicaContext& context, const char* call) const;
  bool is_weightless(const ReplicaContext& context) const;
  bool had_empty_part(const ReplicaContext& context) const;
  /// Calls fn(part, its lane) for the parts of the update that a lane has work for.
  template <class Fn>
  void for_each_part(int lane, const Fn& fn);
  // The stages of a step; all replicas at rest, but for reduce and settle, which each lane calls for its share.
  void begin_step();
  void reduce(int lane, int num_lanes);
  void clip_to(double norm);
  void check_finite_gradients() const;
  void settle(int64_t local_replica);
  void end_step();

  const std::shared_ptr<ReplicaGroup> group_;
  std::vector<std::unique_ptr<UpdateRule>> rules_;
  std::vector<std::shared_ptr<VariableState>> variables_;  // of all groups, in order
  std::vector<std::size_t> rule_of_;                       // by variable
  std::vector<int64_t> steps_;                             // by variable: how often it was updated
  std::vector<Variable> slots_;
  GradientTable gradients_;
  const bool apart_;  // variables are trained apart: each replica updates its own component by its own gradient
  /// Of variables that all replicas share one; of variables that are trained apart one for each replica, on its lane.
  struct Part {
    FusedUpdate update;
    double factor;       // of the gradient: the number of replicas where they are apart, as each loss has its weight
    double clip = 1;     // of the step under way, the factor in it
    StepInfo info = {};  // written in the meeting, read by the replicas after it
  };
  std::deque<Part> parts_;
  std::deque<Coefficients> coefficients_;  // of the step under way; the parts point to them
  std::vector<ScaleCalls> scale_calls_;    // by local replica; its thread
};

}  // namespace lockstep::internal
