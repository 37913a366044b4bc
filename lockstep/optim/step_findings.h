// What a step finds: losses that were not scaled, gradients that were changed by hand, and gradients that are not
// finite.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/gradient/gradient_watch.h"
#include "lockstep/gradient/not_finite.h"
#include "lockstep/optim/forms/form.h"
#include "lockstep/optim/update_work.h"
#include "lockstep/replica/replica_context.h"

namespace lockstep::internal::inline optim {

class StepFindings {
 public:
  /// `work` outlives it. Call while all replicas are at rest.
  explicit StepFindings(UpdateWork& work);

  // For local replica r; call from its thread.

  /// Notes the replica's gradients, in `work` too, and what has become of its losses.
  void collect(const ReplicaContext& context, int64_t r);
  /// After the step.
  void end_step(int64_t r) { watch_.end_step(r); }
  /// The replica's gradients were dropped without a step.
  void drop(const ReplicaContext& context, int64_t r);

  // While all replicas are at rest.

  /// Whether gradients that are there now will probably be dropped and not used: drop() came before the last step, and
  /// not since. Outside of steps.
  bool drops_next() const;
  /// After a run that failed: its losses and gradients do not count any more.
  void forget_run() noexcept;
  /// Makes findings of what collect() has noted.
  void report(const StepOptions& options);
  /// Throws on all workers, or skips the update on all, where a gradient is not finite on any, as `options` ask. Call
  /// with the norm measured.
  void check_finite(const StepOptions& options, const Form& form);
  /// After an update: makes a finding of gradients that were not finite.
  void report_not_finite();

  /// Where the norm of an update is not finite, notes which of the lane's replicas have brought that. Call on each lane
  /// after the update, before their gradients are released.
  void look_at_gradients(int lane) noexcept;

 private:
  /// What a replica brings to a step beside its gradients. Written by its thread.
  struct alignas(64) OfReplica {
    ScaledBackwards consumed;              // up to its last step here, or the last time its gradients were dropped
    std::optional<std::size_t> changed;    // a variable whose gradient is not what backward left
    std::optional<std::size_t> unweighed;  // one whose losses had no weight
    std::vector<std::size_t> not_finite;   // after an update: variables whose gradients are not finite
    bool dropped = false;                  // zero_grad was called since the last step
    bool drops_next = false;               // it was before the last step, and not since
  };

  void report_unweighed_losses();
  void report_losses_that_add_up();
  std::vector<NotFinite> gradients_not_finite(const Form& form) const;
  std::string text_of(const std::vector<NotFinite>& all) const;
  void skip_update();

  UpdateWork& work_;
  GradientWatch watch_;
  std::vector<OfReplica> replicas_;  // by local replica
  bool found_not_finite_ = false;    // and said it
};

}  // namespace lockstep::internal::optim
