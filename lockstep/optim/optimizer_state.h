// What stands behind an Optimizer: its variables with their slots, step counts and rates, and the meeting that updates
// them.
#pragma once

#include <cmath>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/function_ref.h"
#include "lockstep/core/slots.h"
#include "lockstep/linear/factored_weights.h"
#include "lockstep/optim/fused_update.h"
#include "lockstep/optim/gradient_exchange.h"
#include "lockstep/optim/gradient_table.h"
#include "lockstep/optim/gradient_watch.h"
#include "lockstep/optim/group_rule.h"
#include "lockstep/optim/host_update.h"
#include "lockstep/optim/not_finite.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/optimizer_digest.h"
#include "lockstep/optim/optimizer_slots.h"
#include "lockstep/optim/row_exchange.h"
#include "lockstep/optim/row_update.h"
#include "lockstep/optim/saved_state.h"
#include "lockstep/optim/schedule.h"
#include "lockstep/optim/sliced_update.h"
#include "lockstep/replica/replica_context.h"

namespace lockstep::internal {

class ReplicaGroup;

class OptimizerState {
 public:
  /// Throws the UsageErrors of variables_of(), and one (LS-UPDATE-FORM) where slots are to be sliced and cannot be.
  /// `has_optimizer` says whether another living optimizer updates a variable: then the names of the variable's slots
  /// have this optimizer's name in them.
  OptimizerState(std::shared_ptr<ReplicaGroup> group, std::vector<RuleGroup> groups, std::string name,
                 const Placement& placement, Factoring factoring, UpdateForm form, WireFormat wire, Slots slots,
                 FunctionRef<bool(const VariableState&)> has_optimizer);
  ~OptimizerState();

  /// The contracts are those of Optimizer's members.
  StepInfo step(const ReplicaContext& context, const StepOptions& options, const std::source_location& place);
  void zero_grad(const ReplicaContext& context);
  double learning_rate(int64_t group) const { return rule(group).learning_rate(); }
  /// A UsageError where there is no such group.
  const GroupRule& rule(int64_t group) const;
  /// Sets what the rule was asked about before. A schedule that the group has goes on setting its learning rate.
  void set(const RuleSettings& settings, int64_t group);
  /// From now on the group's learning rate is schedule(applied_steps()); none where `schedule` is empty.
  void set_schedule(Schedule schedule, int64_t group);
  /// How many steps it has applied. Steps that failed or were skipped do not count.
  int64_t applied_steps() const;
  /// How many more these are than the updates of the variable that was updated most often.
  int64_t extra_steps() const { return extra_steps_; }
  /// A UsageError for a negative number. Outside of steps.
  void set_extra_steps(int64_t steps);
  int64_t num_groups() const { return static_cast<int64_t>(rules_.size()); }
  const std::string& name() const { return name_; }
  /// Whether gradients that are there now will probably be dropped and not used: zero_grad came before the last step,
  /// and not since. Outside of steps.
  bool drops_next() const;
  /// In the order of the groups.
  const std::vector<std::shared_ptr<VariableState>>& variables() const { return variables_; }
  /// How often variable i was updated.
  int64_t steps(std::size_t i) const { return steps_[i]; }
  /// A UsageError for a negative number. Outside of steps.
  void set_steps(std::size_t i, int64_t steps);
  const std::vector<Variable>& slots() const { return slots_; }
  std::map<std::string, at::Tensor> state() const;
  void gather_slots();
  /// Where slots are sliced; otherwise null.
  SlicedSlots* sliced_slots();
  void load(const std::map<std::string, at::Tensor>& state);
  const std::shared_ptr<ReplicaGroup>& group() const { return group_; }
  /// How several workers update the variables, for describe(); empty where nothing is to be said.
  std::string form() const;
  /// How the last step brought the gradients of variable i together, and how many bytes this worker sent for it; -1:
  /// not counted. Empty with one worker, and before the first step. Outside of steps.
  struct FormOfVariable {
    std::string text = {};
    int64_t bytes_sent = -1;
  };
  FormOfVariable form_of(std::size_t i) const;

  // Step counts and settings that load() and setters changed in a run, from a merge function. Not while replicas run.

  /// After a run that failed: rolls them back, except for the counts of variables that a completed step has updated
  /// since. Keeps nothing of the run's gradients.
  void undo_run();
  /// After a run that succeeded.
  void end_run();

 private:
  friend class StepMeeting;
  /// What a replica brings to a step beside its gradients.
  struct alignas(64) OfReplica {
    ScaledBackwards consumed;              // up to its last step here, or the last time its gradients were dropped
    std::optional<std::size_t> changed;    // a variable whose gradient is not what backward left
    std::optional<std::size_t> unweighed;  // one whose losses had no weight
    std::vector<std::size_t> not_finite;   // after an update: variables whose gradients are not finite
    bool dropped = false;                  // zero_grad was called since the last step
    bool drops_next = false;               // it was before the last step, and not since
  };
  /// Step counts and settings as they were before this run changed them.
  struct Before {
    std::vector<int64_t> steps;
    int64_t extra_steps;
    std::vector<RuleSettings> settings;
    std::vector<Schedule> schedules;
  };

  void check_context(const ReplicaContext& context, const char* call) const;
  /// How many replicas' leaves the update adds.
  int64_t num_leaves() const;
  void keep_before();
  /// Sets the learning rates of the next step. What a schedule throws, or a rate that none can have, is thrown by that
  /// step.
  void follow_schedules() noexcept;
  void take_before();
  void report_findings(const StepOptions& options);
  void report_unweighed_losses();
  void report_losses_that_add_up();
  /// Calls fn(part, its lane) for the parts of the update that a lane has work for.
  template <class Fn>
  void for_each_part(int lane, const Fn& fn);
  /// Decides with all workers whether they share the update.
  void decide_form();
  // The stages of a step. All replicas are at rest; reduce and settle are called by each lane for its share.
  void begin_step(const StepOptions& options);
  /// What the other workers need of this one for begin_exchange().
  std::string report() const;
  void begin_exchange(const StepOptions& options);
  /// The rows of sparse gradients: brings those of all workers here, and moves what they belong to out of the memory
  /// that workers share.
  void begin_rows();
  /// Lets the update have the rows of variable i, as its `step`-th update.
  void add_rows(std::size_t i, int64_t step);
  /// Which rows the update adds for variable i: by replica.
  std::vector<std::shared_ptr<const Rows>> rows_of(std::size_t i, const ReplicaRange& replicas) const;
  /// Whether the step under way updates variable i.
  bool updates(std::size_t i) const {
    const Part& part = parts_.front();
    return part.update.present(i) || (!part.rows.is_empty() && part.rows.has(i));
  }
  /// Gets the memory in which the update makes gradients from factors. Once all workers have the sums there is no vote
  /// any more, and the update of each is whole or not at all.
  void expect_factors();
  void reduce(int lane, int num_lanes);
  void finish_sums();
  void end_pack();
  /// Of an update that the workers of each host share, where there are several hosts; otherwise null.
  SumsBetweenHosts* sums_between_hosts() const;
  /// Whether bytes travel between workers in a step, and no function of the program takes part. Otherwise a worker that
  /// fails tells the others: they come to an agreement next.
  bool exchanges() const;
  /// All workers get what they need for the norm of all gradients.
  void share_norm();
  /// Where slots are sliced: computes the new weights of a lane's part of the own slices.
  void prepare(int lane, int num_lanes, bool is_measured);
  /// All workers say that they can go on. Throws on all where one cannot.
  void vote();
  /// Says in a proposal how often the variables of this step have been updated, which must be equal on all workers.
  void tell_counts(Proposal& mine) const;
  void clip_to(double norm);
  static void check_clip_value(const StepOptions& options);
  bool has_own_rules() const { return parts_.front().update.has_own_rules(); }
  /// Throws on all workers, before anything is written, what a rule of the program's own has thrown on any.
  void agree_on_rules();
  /// Throws on all workers, or skips the update on all, where a gradient is not finite on any.
  void check_finite(const StepOptions& options);
  std::vector<NotFinite> gradients_not_finite() const;
  /// Where the norm of an update is not finite, notes which of the lane's replicas have brought that. Call after the
  /// update, before their gradients are released.
  void look_at_gradients(int lane) noexcept;
  /// Then makes it a finding.
  void report_not_finite();
  std::string text_of(const std::vector<NotFinite>& all) const;
  void skip_update();
  void settle(int64_t local_replica);
  void end_step();

  const std::shared_ptr<ReplicaGroup> group_;
  const std::string name_;
  std::vector<std::unique_ptr<GroupRule>> rules_;
  std::vector<std::shared_ptr<VariableState>> variables_;  // of all groups, in order
  const std::shared_ptr<VariableCounts> counts_;           // theirs
  const Digest digest_;                                    // of variables and rules
  std::vector<std::size_t> rule_of_;                       // by variable
  std::vector<int64_t> steps_;                             // by variable: how often it was updated
  int64_t extra_steps_ = 0;
  std::vector<Schedule> schedules_;    // by group; empty functions where there are none
  std::exception_ptr schedule_error_;  // of the next step
  std::vector<Variable> slots_;
  std::vector<NamedSlot> named_slots_;   // the same, with their names in state()
  std::vector<std::size_t> first_slot_;  // by variable; one more at the end
  std::optional<Before> before_;
  GradientTable gradients_;
  std::optional<GradientExchange> exchange_;  // with several workers whose gradients are added in tree order
  std::optional<RowExchange> row_exchange_;   // with several workers, but where variables are trained locally
  const AskedForm asked_form_;
  bool form_is_decided_ = true;           // else by the first step, with exchange_
  std::unique_ptr<HostUpdate> host_;      // in place of exchange_, where workers of a host share the update
  std::unique_ptr<SlicedUpdate> sliced_;  // in place of exchange_, where slots are sliced
  std::string why_not_shared_;
  const bool local_;  // variables are trained locally: each replica updates its own component by its own gradient
  /// Variables that all replicas share have one part. Variables that are trained locally have one part for each
  /// replica, on that replica's lane.
  struct Part {
    FusedUpdate update;
    double factor;       // of the gradient: 1; the number of replicas where trained locally, as each loss has its share
    Clip clip = {};      // of the step under way; `factor` is part of it
    StepInfo info = {};  // written in the meeting, read by the replicas after it
    RowUpdate rows = {};
    double global_norm() const { return std::sqrt(update.sum_of_squares() + rows.sum_of_squares()); }
  };
  std::deque<Part> parts_;
  std::deque<Coefficients> coefficients_;  // of the step under way; the parts point to them
  bool found_not_finite_ = false;          // and said it
  bool is_skipped_ = false;                // the update of the step under way: a gradient was not finite
  GradientWatch watch_;
  FactoredWeights factored_;
  std::vector<OfReplica> replicas_;  // by local replica, written by its thread
};

}  // namespace lockstep::internal
