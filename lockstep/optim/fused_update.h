// From one sum to new weights: adds the replicas' gradients and updates weights and slots in one pass over memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/gradient/gradient_table.h"
#include "lockstep/optim/loops/clip.h"
#include "lockstep/optim/update/bound_update.h"
#include "lockstep/optim/update/own_rules.h"
#include "lockstep/optim/update/update_kernels.h"

namespace lockstep::internal::inline optim {

/// Lanes call `measure`, `call_rules`, `prepare` and `update` side by side, each for its share of blocks. All else is
/// called while all replicas are at rest.
///
/// It has four rooms. A plan (update_plan.h) says which lane has which blocks. BoundUpdate knows where values lie, and
/// keeps what lanes find. UpdateKernels do the arithmetic. OwnRules calls the rules of the program's own, if there are
/// any: they may throw, so call_rules() computes their new values aside, and prepare() and update() then take them from
/// there.
///
/// There are three kinds. An update of this process alone writes the new values over the old ones. One that all workers
/// of a host share (host_update.h) reads each value where it is, and writes the new one into the next half of the
/// variable's or slot's memory; it has one copy of each. One that workers divide (sliced_update.h) has the blocks of
/// this worker alone: prepare() computes their new weights, and update() then writes them over the old ones. Half
/// precision is not among the dtypes of the second and third kind.
class FusedUpdate {
 public:
  /// Updates all copies of an on-write variable. Of a variable that is trained locally, it updates the component of
  /// replica `replicas.first` alone.
  FusedUpdate(std::vector<UpdateTarget> targets, ReplicaRange replicas, int lanes);
  /// An update of which this process has the lanes `lanes`. Where all workers of the host share it, `squares` has a
  /// place for each block, in memory that all of them map. Where workers divide it, `squares` is empty.
  FusedUpdate(std::vector<UpdateTarget> targets, ReplicaRange replicas, LaneRange lanes, std::span<double> squares);

  const std::vector<UpdateTarget>& targets() const { return update_.owners(); }
  const UpdatePlan& plan() const { return update_.plan(); }

  /// Call as a step begins, and where the update is shared, with the coefficients set. Looks up the memory of variables
  /// and slots again where any may have moved since the last step.
  void begin_step() { update_.begin_step(); }
  /// The numbers by which the next step updates target i; null leaves the target unchanged. The caller keeps
  /// `*coefficients` alive until the step ends.
  void set_coefficients(std::size_t i, const Coefficients* coefficients) { update_.set_coefficients(i, coefficients); }
  bool present(std::size_t i) const { return update_.present(i); }
  /// Gets the memory in which gradients of target i are made from factors, so that update() needs none for them.
  void expect_factors(std::size_t i);
  /// Gets the memory that a limit on elements needs.
  void expect_limit() { kernels_->expect_limit(); }

  /// Computes the lane's part of the squared norm of the summed gradients. Writes no weights, slots or checksums.
  void measure(const GradientTable& gradients, int lane) { kernels_->measure(update_, gradients, lane); }
  bool has_own_rules() const { return !rules_.is_empty(); }
  /// Calls the program's own rules for the lane's part, with the gradients clipped, and computes its part of the norm.
  /// `is_measured` as for update(). Keeps what a rule throws, and, where `digests`, digests of what rules gave.
  void call_rules(const GradientTable& gradients, int lane, const Clip& clip, bool is_measured, bool digests);
  /// Throws what the first lane's rule has thrown in the last call_rules().
  void require_rules() const { rules_.require_no_error(); }
  /// A digest of the new values of target i that rules gave to the lanes of this process in the last call_rules(),
  /// where it kept digests; otherwise 0. The sum of all processes' digests does not depend on how they divide the
  /// blocks.
  uint64_t digest_of_rule(std::size_t i) const { return rules_.digest(update_, i); }
  /// The sum of all targets'.
  uint64_t digest_of_rules() const;
  /// Does the lane's part of the update, with the gradients clipped; computes the norm in the same pass.
  /// Where `is_measured`, measure() has computed it in this step, and other workers may be reading it.
  void update(const GradientTable& gradients, int lane, const Clip& clip, bool is_measured);
  /// Does what update() does, but changes no value, slot or checksum: it writes each block's new weights to
  /// `place(target, offset of the block in bytes)`, where there is room for them. update() with the same arguments then
  /// writes the same bits. For an update that workers divide.
  void prepare(const GradientTable& gradients, int lane, const Clip& clip, bool is_measured, PlaceOfBlock place);
  /// The squares of each block, from the last pass: the lanes of this process have written theirs.
  std::span<double> squares() { return update_.squares(); }
  /// The sum of squares of the dense gradients, before `clip`, from the last measure or update of all lanes.
  double sum_of_squares() const { return update_.sum_of_squares(); }

  /// One for each variable that had a foreign write, in order of targets. Empties the list, as the next update does.
  std::vector<ForeignWrite> take_foreign_writes() { return update_.take_foreign_writes(); }
  /// The variables whose part of the norm is not finite.
  std::vector<std::size_t> variables_not_finite() const { return update_.targets_not_finite(); }

 private:
  BoundUpdate update_;
  std::unique_ptr<UpdateKernels> kernels_;
  OwnRules rules_;
};

}  // namespace lockstep::internal::optim
