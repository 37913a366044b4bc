// One step from end to end: the checks around what the replicas do.
// Walk: data/distributed_dataset.cpp -> here -> replica/replica_pool.cpp
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "lockstep/core/error.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/replica/replica_group.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/variable/registry.h"

namespace lockstep {

using internal::CallScope;
using internal::ContextAccess;
using internal::ReplicaGroup;

namespace {

/// Keeps one replica's modules in evaluation mode: those that there are, as a merge function may make more.
class EvaluationScope {
 public:
  EvaluationScope(const internal::VariableRegistry& registry, int64_t r) : modules_(registry.modules()), r_(r) {
    for (const auto& module : modules_) module->enter_evaluation(r_);
  }
  ~EvaluationScope() {
    for (const auto& module : modules_) module->leave_evaluation(r_);
  }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  const std::vector<std::shared_ptr<internal::ModuleBinding>> modules_;
  const int64_t r_;
  const at::NoGradGuard no_grad_;
};

void drop_gradients(const internal::VariableRegistry& registry) {
  for (const auto& variable : registry.variables()) {
    for (int64_t r = 0; r < variable->num_components(); ++r) variable->component(r).mutable_grad() = at::Tensor();
  }
}

}  // namespace

void Strategy::run_replicas(Mode mode, internal::FunctionRef<void(ReplicaContext&, int64_t)> body) {
  const bool evaluates = mode == Mode::kEvaluate;
  const CallScope call(*group_, evaluates ? "Strategy::evaluate" : "Strategy::run",
                       "do the work itself: runs do not nest");
  call.require_outermost();
  try {
    group_->run(evaluates ? ReplicaGroup::Mode::kEvaluate : ReplicaGroup::Mode::kStep, [&](ReplicaContext& context) {
      const int64_t r = ContextAccess::local_index(context);
      registry_->begin_run(r);
      if (evaluates) {
        const EvaluationScope scope(*registry_, r);
        body(context, r);
      } else {
        body(context, r);
      }
      // Whatever the step did with its own hands shows here, in the run that did it, and with its replica's name.
      registry_->check_components(r);
    });
  } catch (...) {
    registry_->undo_run();
    for (const auto& one : optimizers_) {
      if (const auto optimizer = one.lock()) optimizer->undo_run();
    }
    if (!evaluates) {
      drop_gradients(*registry_);
      for (int64_t r = 0; r < num_local_replicas(); ++r) ContextAccess::drop_scale_calls(group_->context(r));
    }
    throw;
  }
  registry_->end_run();
  if (group_->written_variables() > 0) {
    for (const auto& one : optimizers_) {
      if (const auto optimizer = one.lock()) optimizer->end_run();
    }
  }
  if (!evaluates && registry_->synchronization().averages_after(group_->step())) average_parameters();
  if (!evaluates && verify_every_ > 0 && group_->step() % verify_every_ == 0) {
    registry_->forget_unused();
    verify_memory();
  }
}

void Strategy::average_parameters() {
  for (const auto& variable : registry_->variables()) {
    if (variable->is_trained_apart() && !variable->is_slot()) variable->average_components();
  }
}

void Strategy::verify_memory() {
  for (const auto& variable : registry_->variables()) variable->check_memory();
}

void Strategy::set_share(ReplicaContext& context, const internal::BatchShare& share) {
  ContextAccess::set_share(context, share.batches, share.part, share.whole);
}

void internal::check_argument_size(const char* call, std::size_t size, int64_t num_local_replicas) {
  if (static_cast<int64_t>(size) == num_local_replicas) return;
  throw UsageError(std::string(call) + "() was given a PerReplica of " + std::to_string(size) + " values for " +
                       std::to_string(num_local_replicas) + " replicas",
                   "pass what per_replica(), a data set or an earlier run() of this strategy made");
}

}  // namespace lockstep
