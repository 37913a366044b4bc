// One step from end to end, in this order:
//   before   the workers agree that they run the same batches; an evaluation is lent the values that buffers have for
//            all;
//   step     on each replica's thread (replica/pool/replica_pool.cpp) its random streams begin anew, it enters its
//            context (replica/replica_group.cpp) and calls the step function; then it looks for foreign writes, so that
//            the error names the replica;
//   after    findings of losses and seeds; buffers settle; variables are verified and averages exchanged, where it is
//            time (finish_step); the workers agree that all have come here; the step is counted;
//   failed   what the run has written is rolled back, except what completed optimizer steps have written.
// Walk: data/distributed_dataset.cpp -> here -> replica/pool/replica_pool.cpp
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <vector>

#include "lockstep/optim/optimizer_state.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/variable/module/module_buffers.h"
#include "lockstep/variable/registry.h"

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
  internal::LentBuffers lent;  // what an evaluation has of buffers is what a read gives
  if (evaluates) lent = registry_->buffers().lend(registry_->modules());
  // What ReplicaGroup::run calls on each replica's thread.
  const auto step = [&](ReplicaContext& context) {
    const int64_t r = ContextAccess::local_index(context);
    registry_->begin_run(r);
    if (evaluates) {
      const EvaluationScope scope(*registry_, r);
      lent.give(r);
      body(context, r);
      lent.take_back(r);
    } else {
      body(context, r);
    }
    // A foreign write in place is found here, in the run that did it, so that the error names the replica.
    registry_->check_components(r);
  };
  const auto finish = [&] {
    registry_->buffers().settle(registry_->modules(), evaluates);
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
  for (int64_t r = 0; r < num_local_replicas(); ++r) ContextAccess::drop_scaled_backwards(group_->context(r));
}

internal::BatchUses& Strategy::batch_uses() const { return group_->batch_uses(); }

void Strategy::set_share(ReplicaContext& context, const internal::BatchShare& share) {
  ContextAccess::set_share(context, share.batches, share.part, share.whole, share.padding);
}

}  // namespace lockstep
