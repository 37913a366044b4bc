// What stands behind a Variable: its components, and what the library asks of a variable of either kind.
#pragma once

#include <ATen/core/TensorBody.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "lockstep/variable/gradient_form.h"
#include "lockstep/variable/kinds/component.h"
#include "lockstep/variable/kinds/variable_memory.h"
#include "lockstep/variable/module/buffers.h"
#include "lockstep/variable/values.h"
#include "lockstep/variable/variable.h"
#include "lockstep/variable/variable_counts.h"

namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica

namespace lockstep::internal::inline variable {

class MirroredState;
class OnReadState;

/// One variable. Its members are called outside of steps, or while all replicas are at rest in a meeting, except for
/// those that name another rule.
///
/// There are two kinds: mirrored_state.h (on-write) and on_read_state.h. A *slot* is a variable of either kind that an
/// optimizer made for itself: no user holds its tensors, so foreign writes are not looked for.
class VariableState {
 public:
  /// Where a variable comes from.
  struct Origin {
    std::source_location place = {};        // the user's line that asked for it, where it is known
    std::vector<std::string> devices = {};  // whose memory each copy is, as the placement named it; empty: LibTorch's
    bool slot = false;                      // an optimizer's
    bool local = false;                     // each replica trains its own: see Synchronization::trains_locally
    Buffers buffers = Buffers::kAuto;       // of a module's buffer: what becomes of it
  };

  virtual ~VariableState() = default;
  VariableState(const VariableState&) = delete;
  VariableState& operator=(const VariableState&) = delete;

  const VariableOptions& options() const { return options_; }
  const std::string& name() const { return options_.name; }
  const std::source_location& place() const { return origin_.place; }
  bool is_slot() const { return origin_.slot; }
  /// Whether it is an on-read variable of which an optimizer updates each component by its replica's gradient.
  bool is_trained_locally() const { return origin_.local; }
  /// What becomes of it where it is a module's buffer.
  Buffers buffers() const { return origin_.buffers; }
  /// Whose memory it is: "cpu"; where copies differ, the names of all.
  std::string where() const;
  /// Whose memory each copy is, as the placement named it; empty: LibTorch's own.
  const std::vector<std::string>& devices() const { return origin_.devices; }
  const std::shared_ptr<ReplicaGroup>& group() const { return group_; }
  const std::shared_ptr<VariableCounts>& counts() const { return counts_; }
  /// Dtype and layout as created. A component may have been changed by other code since.
  const at::Tensor& like() const { return like_; }
  /// The same as the numbers that an update computes with: see as_numbers().
  at::Tensor numbers() const { return as_numbers(like_); }
  at::ScalarType number_type() const { return c10::toRealValueType(like_.scalar_type()); }
  int64_t bytes() const { return like_.numel() * static_cast<int64_t>(like_.element_size()); }

  /// For describe(). Any thread.
  GradientForm gradient_form() const { return gradient_form_.load(std::memory_order_relaxed); }
  void set_gradient_form(GradientForm form) {
    if (gradient_form() != form) gradient_form_.store(form, std::memory_order_relaxed);
  }

  /// Which kind it is.
  bool on_write() const { return on_write_; }
  /// The variable as what it is; an InternalError where it is of the other kind.
  MirroredState& as_mirrored();
  OnReadState& as_on_read();

  /// Local replica r's tensor. Any thread.
  const at::Tensor& component(int64_t r) const { return components_[static_cast<std::size_t>(r)].tensor; }
  /// The same, and what is recorded of it. Its address does not change.
  Component& component_at(int64_t r) { return components_[static_cast<std::size_t>(r)]; }
  int64_t num_components() const { return static_cast<int64_t>(components_.size()); }

  /// The library's memories: none of an on-read variable that is not trained locally.
  const std::vector<at::Tensor>& copies() const { return memory_.copies(); }
  /// Where the library's memory of local replica r's component is. Unless it lies in memory of all workers of the host,
  /// it stays there until VariableMemory::bindings() changes.
  const at::Tensor& memory(int64_t r) const { return memory_.copy_of(r); }
  /// Whether the value lies in memory that all workers of the host map.
  bool is_in_halves() const { return memory_.is_in_halves(); }
  /// The checksums of one copy, a word for each block, or null where foreign writes are not looked for. The fused
  /// update compares and renews them in its own pass.
  uint64_t* checksums(std::size_t copy) { return memory_.checksums(copy); }

  /// The value; see Variable::read.
  virtual at::Tensor read() const = 0;
  /// Sets every component to `value`. A UsageError while another value stands in.
  virtual void write(const at::Tensor& value) = 0;

  /// As a run begins, on replica r's thread.
  virtual void begin_run(int64_t /*r*/) {}
  /// An optimizer's step is complete: a run that fails later does not undo what the step has written.
  virtual void keep_step() = 0;
  /// After a run that succeeded.
  virtual void end_run() noexcept = 0;
  /// After a run that failed: rolls back what the run wrote, up to the last completed step of an optimizer. Does not
  /// throw: the log names a variable that could not be rolled back.
  virtual void undo_run() noexcept = 0;
  /// Lets go of all replicas' gradients.
  void drop_gradients() noexcept;
  /// Whether a replica of this process has one, which no step has used.
  bool has_gradient() const noexcept;

  /// Whether local replica r's component is as the library left it: call from replica r's thread. Otherwise throws the
  /// variable's DivergenceError.
  void check_component(int64_t r) {
    require_sound();
    if (!component_at(r).as_left()) throw_not_as_left(r);
  }
  /// Throws the DivergenceError of a variable that is damaged. Any thread.
  virtual void require_sound() const {}
  /// Compares every copy's checksums. Throws the DivergenceError of a foreign write.
  virtual void check_memory() {}
  /// Throws the UsageError of a `call` that needs the variable's own value while another stands in. Any thread.
  virtual void require_own_value(const char* /*call*/) const {}
  /// Whether it is a slot of which this worker has slices alone: see optim/forms/sliced_slots.h.
  virtual bool is_sliced() const { return false; }
  /// Throws the UsageError of a `call` that needs all of such a slot. Any thread.
  void require_whole(const char* call) const;

 protected:
  /// `components[r]` is local replica r's tensor. `memory` is empty, or the library's memory of all components.
  VariableState(std::shared_ptr<ReplicaGroup> group, std::shared_ptr<VariableCounts> counts, VariableOptions options,
                std::vector<at::Tensor> components, VariableMemory memory, Watch watch, Origin origin);

  /// Throws the DivergenceError of a component that is not as the library left it.
  [[noreturn]] virtual void throw_not_as_left(int64_t r) = 0;
  /// Gives local replica r's component the library's memory back, where other code replaced it.
  void put_back(int64_t r);

  // A step looks at these members of each variable, so they come first.
  std::vector<Component> components_;
  at::Tensor like_;
  VariableMemory memory_;

 private:
  const bool on_write_;
  const std::shared_ptr<ReplicaGroup> group_;
  const std::shared_ptr<VariableCounts> counts_;
  const VariableOptions options_;
  const Origin origin_;
  std::atomic<GradientForm> gradient_form_{GradientForm::kOrdinary};
};

/// A variable of the kind that `options.synchronization` names, kOnWrite or kOnRead. `components[r]` is local replica
/// r's tensor; of an on-write variable, those at one address are one copy.
std::shared_ptr<VariableState> make_variable_state(std::shared_ptr<ReplicaGroup> group,
                                                   std::shared_ptr<VariableCounts> counts, VariableOptions options,
                                                   const std::vector<at::Tensor>& components,
                                                   const VariableState::Origin& origin);

/// "mirrored", "mirrored sum", "on-read mean", ...
std::string kind_of(const VariableOptions& options);
/// The same, and of a module's buffer what becomes of it after each run: "buffer first", "buffer sum", "buffer equal".
std::string kind_of(const VariableState& variable);

}  // namespace lockstep::internal::variable
