// One optimizer step, as the meeting of all replicas that it is: from their gradients to new weights.
// Walk: gradient/gradient_table.cpp -> here -> optim/update/host_update_kernels.cpp
#pragma once

#include <deque>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/tuning/slots.h"
#include "lockstep/linear/factored_weights.h"
#include "lockstep/optim/forms/form.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/optimizer_counts.h"
#include "lockstep/optim/optimizer_digest.h"
#include "lockstep/optim/rule_agreement.h"
#include "lockstep/optim/step_findings.h"
#include "lockstep/optim/update_work.h"
#include "lockstep/replica/meeting.h"
#include "lockstep/replica/replica_context.h"

namespace lockstep::internal::inline optim {

/// What an optimizer is made with.
struct OptimizerSetup {
  std::shared_ptr<ReplicaGroup> group;
  std::string name;
  Factoring factoring;
  AskedForm asked;
  Slots slots = Slots::kWhole;
};

/// The contracts of the public functions are those of Optimizer's members.
class OptimizerStep {
 public:
  /// `counts` outlives it. `initial` has what each slot begins with, by variable and slot.
  OptimizerStep(const OptimizerSetup& setup, std::vector<UpdateTarget> targets, Digest digest,
                const std::vector<std::vector<double>>& initial, OptimizerCounts& counts);

  StepInfo step(const ReplicaContext& context, const StepOptions& options, const std::source_location& place);
  void zero_grad(const ReplicaContext& context);
  bool drops_next() const { return findings_.drops_next(); }

  /// How several workers update the variables, for describe(); empty where nothing is to be said.
  std::string form() const;
  /// How the last step brought the gradients of variable i together. Empty with one worker, and before the first step.
  /// Outside of steps.
  FormOfVariable form_of(std::size_t i) const;
  /// Where slots are sliced; otherwise null.
  SlicedSlots* sliced_slots() { return form_ ? form_->sliced_slots() : nullptr; }
  /// After a run that failed: keeps nothing of its gradients, and of the losses that they came from.
  void forget_run() noexcept {
    findings_.forget_run();
    if (form_) form_->forget_run();
  }

 private:
  friend class StepMeeting;

  void check_context(const ReplicaContext& context, const char* call) const;

  // Stages of a step, in order. All replicas are at rest; settle() is called by each lane for its share.

  /// Before the first step: decides with all workers how they share the update.
  void decide_form();
  /// `measures`: the norm is to be known before anything is updated.
  void begin(const StepOptions& options, bool measures);
  /// With the norm measured: refuses or skips a step that is not finite, and clips, as the options ask.
  void use_norm(const StepOptions& options);
  void settle(int lane);
  void end();

  // Parts of them.

  /// Lets the update have the rows of variable i, as its `step`-th update.
  void add_rows(std::size_t i, int64_t step);
  /// Which rows the update adds for variable i: by replica.
  std::vector<std::shared_ptr<const Rows>> rows_of(std::size_t i, const ReplicaRange& replicas) const;
  void clip_to(double norm);
  void settle_replica(int64_t r);
  void require_no_foreign_write();
  void tell_counts(Proposal& mine) const;  // see UpdateWork

  UpdateWork work_;
  const Digest digest_;  // of variables and rules
  OptimizerCounts& counts_;
  const AskedForm asked_;
  std::unique_ptr<Form> form_;             // null: the first step decides
  std::deque<Coefficients> coefficients_;  // of the step under way; the parts point to them
  StepFindings findings_;
  FactoredWeights factored_;
};

/// The meeting of all replicas in Optimizer::step. In the first step of an optimizer whose form workers have to agree
/// on, they meet once more before it.
class StepMeeting final : public Meeting {
 public:
  StepMeeting(OptimizerStep& step, const StepOptions& options, const std::source_location& place)
      : step_(step), options_(options), place_(place) {}

  const char* what() const override { return "optimizer.step"; }
  std::string_view name() const override { return step_.work_.name; }
  uint64_t signature() const override;
  std::string describe() const override;
  std::source_location place() const override { return place_; }
  std::span<const Stage> stages() const override;

  Form& form() { return *step_.form_; }
  /// See Form::exchanges().
  template <class Work>
  void or_end_run(const Work& work) {
    if (!form().exchanges()) return work();
    step_.work_.group->rounds().or_end_run(work);
  }

  // Stages.
  void decide_form() {
    step_.work_.group->rounds().or_end_run([&] { step_.decide_form(); });
  }
  void begin() {
    // In each form of several workers it takes decisions for later steps too: how memory is laid out, and who has it.
    if (step_.work_.local) return step_.begin(options_, measures());
    step_.work_.group->rounds().or_end_run([&] { step_.begin(options_, measures()); });
  }
  void use_norm() { step_.use_norm(options_); }
  void agree_on_rules() {
    // After the agreement this worker alone may lack the memory to compare what was told.
    step_.work_.group->rounds().or_end_run([&] { internal::agree_on_rules(step_.work_, form()); });
  }
  void settle(int lane, int) { step_.settle(lane); }
  void end() { step_.end(); }

 private:
  bool measures() const { return options_.clip_global_norm || options_.check_finite || options_.skip_non_finite; }

  OptimizerStep& step_;
  const StepOptions options_;
  const std::source_location place_;
};

}  // namespace lockstep::internal::optim
