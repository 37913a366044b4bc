// One step from end to end: the checks around what the replicas do.
// Walk: data/distributed_dataset.cpp -> here -> replica/replica_pool.cpp
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>
#include <vector>

#include "lockstep/comm/agreement.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/replica/compute_settings.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/variable/registry.h"
#include "lockstep/variable/value_digests.h"

namespace lockstep {

using internal::CallScope;
using internal::ContextAccess;

namespace {

/// Keeps one replica's modules in evaluation mode. It keeps a list of them, because a merge function may make more.
class EvaluationScope {
 public:
  EvaluationScope(const internal::VariableRegistry& registry, int64_t r) : modules_(registry.modules()), r_(r) {
    try {
      for (const auto& module : modules_) module->enter_evaluation(r_);
    } catch (...) {
      leave();
      throw;
    }
  }
  ~EvaluationScope() { leave(); }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  void leave() const noexcept {
    for (const auto& module : modules_) module->leave_evaluation(r_);
  }

  const std::vector<std::shared_ptr<internal::ModuleBinding>> modules_;
  const int64_t r_;
  const at::NoGradGuard no_grad_;
};

}  // namespace

void Strategy::run_replicas(Mode mode, std::string_view origins,
                            internal::FunctionRef<void(ReplicaContext&, int64_t)> body) {
  const bool evaluates = mode == Mode::kEvaluate;
  const CallScope call(*group_, evaluates ? "Strategy::evaluate" : "Strategy::run",
                       "do the work in the step itself: runs do not nest", internal::Workers::kAll, origins);
  call.require_outermost();
  const auto step = [&](ReplicaContext& context) {
    const int64_t r = ContextAccess::local_index(context);
    registry_->begin_run(r);
    if (evaluates) {
      const EvaluationScope scope(*registry_, r);
      body(context, r);
    } else {
      body(context, r);
    }
    // A foreign write in place is found here, in the run that did it, so that the error names the replica.
    registry_->check_components(r);
  };
  const auto finish = [&] {
    if (!evaluates) finish_step();
  };
  try {
    group_->run(evaluates ? internal::RunMode::kEvaluate : internal::RunMode::kStep, step, finish);
  } catch (...) {
    undo_run(evaluates);
    throw;
  }
  registry_->end_run();
  if (registry_->counts()->written == 0) return;
  for (const auto& one : optimizers_) {
    if (const auto optimizer = one.lock()) optimizer->end_run();
  }
}

/// Rolls back what a failed run has written, except what completed optimizer steps have written.
void Strategy::undo_run(bool evaluates) noexcept {
  registry_->undo_run();
  for (const auto& one : optimizers_) {
    if (const auto optimizer = one.lock()) optimizer->undo_run();
  }
  if (evaluates) return;
  registry_->drop_gradients();
  for (int64_t r = 0; r < num_local_replicas(); ++r) ContextAccess::drop_scale_calls(group_->context(r));
}

/// The end of a step, after all replicas have returned and before the step is counted. Everything that can fail comes
/// before the first write.
void Strategy::finish_step() {
  const int64_t completed = group_->step() + 1;
  if (verify_every_ > 0 && completed % verify_every_ == 0) {
    registry_->forget_unused();
    // Workers go on to exchange averages, so none may leave alone.
    internal::ValueDigests digests(*group_);
    const auto all = internal::agree_on_call(group_->rounds(), {.call = "the verification of a step", .step = step()},
                                             [&](internal::Proposal& mine) {
                                               registry_->verify();
                                               if (num_workers() > 1) registry_->add_mirrored(digests);
                                               // A handle may be left on one worker alone.
                                               digests.fill_in(mine, /*names_must_match=*/false);
                                             });
    digests.require_equal(all, "the verification of a step");
  }
  if (!registry_->synchronization().averages_after(completed)) return;
  std::vector<internal::VariableState*> local;
  for (const auto& variable : registry_->variables()) {
    if (variable->is_trained_locally() && !variable->is_slot()) local.push_back(variable.get());
  }
  if (local.empty()) return;
  const internal::ComputeSettingsGuard settings(group_->plan().compute);
  std::vector<std::pair<internal::VariableState*, at::Tensor>> averages;
  for (internal::VariableState* variable : local) averages.emplace_back(variable, variable->read());
  for (const auto& [variable, mean] : averages) variable->write(mean);
}

internal::BatchUses& Strategy::batch_uses() const { return group_->batch_uses(); }

void Strategy::set_share(ReplicaContext& context, const internal::BatchShare& share) {
  ContextAccess::set_share(context, share.batches, share.part, share.whole, share.padding);
}

}  // namespace lockstep
