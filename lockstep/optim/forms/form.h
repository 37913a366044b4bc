// The form of an optimizer's update: how the workers of a run make it together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/tuning/slots.h"
#include "lockstep/optim/forms/asked_form.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/optim/update_work.h"

namespace lockstep::internal::inline optim {

class SlicedSlots;
class StageTables;

/// How a step brought the gradients of a variable together, and how many bytes this worker sent for it; -1: not
/// counted.
struct FormOfVariable {
  std::string text = {};
  int64_t bytes_sent = -1;
};

/// An update is three answers. Which leaves does it add: begin_step() and the stages before the norm is measured bring
/// them here. Which blocks are this worker's: the constructor makes the parts of `work`, which have these alone. Where
/// do new values go, and when are they valid: the stages from the update on. A form gives the answers, and the stages
/// that carry them out as constant tables. The arithmetic is FusedUpdate's in every form, and so are the bits.
///
/// All functions are called while all replicas are at rest, unless it is said otherwise.
class Form {
 public:
  explicit Form(UpdateWork& work) : work_(work) {}
  virtual ~Form() = default;
  Form(const Form&) = delete;
  Form& operator=(const Form&) = delete;

  virtual const StageTables& stages() const = 0;

  /// How many replicas' leaves the update adds, where they do not lie in this process alone.
  virtual int64_t num_leaves() const { return work_.group->num_local_replicas(); }
  /// What the other workers need of this one for begin_step(), beside what gradients its replicas have. Equally long on
  /// all workers.
  virtual std::string report() const { return {}; }
  /// When all workers have told of their gradients: lays out what travels, and gets the memory for it.
  virtual void begin_step(const StepOptions& options) = 0;
  /// When the own blocks are measured: all workers get what they need for the norm of all gradients.
  virtual void share_norm() {}
  /// What a run that failed has left is not used.
  virtual void forget_run() noexcept {}

  /// Whether bytes travel between workers in a step, and no function of the program takes part. Then a worker that
  /// fails in a stage ends the run for the others, which cannot be told: see Rounds::or_end_run.
  virtual bool exchanges() const { return false; }
  /// Whether new values are written beside the old ones, and moved to; foreign writes are then looked at before that.
  virtual bool moves_values() const { return false; }
  /// How many times the run computes all new values: once on each worker, once on each host, or once in all; and which
  /// of these a worker takes part in.
  virtual int64_t num_computations() const { return 1; }
  virtual int64_t computation_of(int64_t /*worker*/) const { return 0; }
  /// Whether the sum of variable i's gradients is finite, as far as this worker adds it.
  virtual bool sum_is_finite(std::size_t i) const { return work_.gradients.sum_is_finite(i, *work_.group); }
  /// Where slots are sliced; otherwise null.
  virtual SlicedSlots* sliced_slots() { return nullptr; }

  /// How several workers update the variables, for Strategy::describe(); empty where nothing is to be said.
  virtual std::string text() const { return {}; }
  /// Of the last step.
  virtual FormOfVariable of_variable(std::size_t) const { return {}; }

  // Stages that forms have in common. Called by each lane for its share.

  void measure(int lane, int num_lanes);
  void call_rules(int lane, int num_lanes);
  void update(int lane, int num_lanes);

 protected:
  /// Gets the memory in which this process makes gradients from the factors of its own replicas.
  void expect_own_factors();
  /// Another optimizer of the same variables may have a form in which hosts' workers share memory.
  void leave_halves();

  UpdateWork& work_;
};

/// The form that follows from how the optimizer was made; null where workers agree on it, in the first step.
/// `initial` has what each slot begins with, by variable and slot.
std::unique_ptr<Form> form_at_once(UpdateWork& work, const AskedForm& asked, Slots slots,
                                   const std::vector<std::vector<double>>& initial);
/// The form that all workers choose together. Throws what HostUpdate::agree() throws.
std::unique_ptr<Form> agree_on_form(UpdateWork& work, const AskedForm& asked);

}  // namespace lockstep::internal::optim
