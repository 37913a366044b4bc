// What stands behind a Variable: its components, how they may be written, and how foreign writes are noticed.
#pragma once

#include <ATen/core/TensorBody.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/reduce/operands.h"
#include "lockstep/variable/component.h"
#include "lockstep/variable/component_snapshot.h"
#include "lockstep/variable/values.h"
#include "lockstep/variable/variable.h"
#include "lockstep/variable/variable_memory.h"

namespace lockstep::internal {

class ReplicaGroup;

/// One variable. Its members are called outside of steps, or while all replicas are at rest in a meeting, except for
/// those that name another rule.
///
/// Three kinds stand on the same parts. A *mirrored* variable (on-write) has a VariableMemory of one or more copies;
/// several replicas' components may be the same copy, each under a tensor of its own, with its own gradient and version
/// counter. The variable remembers each tensor's version and address (component.h) and a checksum of each block of each
/// copy, all as the library last left them: what differs later was written by somebody else. A *slot* is an
/// optimizer's; nobody else has it, so nobody looks for foreign writes. The components of an *on-read* variable are its
/// replicas' own affair, and a snapshot of each is taken as a run begins; one that is trained locally has a memory too,
/// as an optimizer writes there.
class VariableState {
 public:
  /// Where a variable comes from.
  struct Origin {
    std::source_location place = {};        // the user's line that asked for it, where it is known
    std::vector<std::string> devices = {};  // whose memory each copy is, as the placement named it; empty: LibTorch's
    bool slot = false;                      // an optimizer's
    bool local = false;                     // each replica trains its own: see Synchronization::trains_locally
  };

  /// `components[r]` is local replica r's tensor; those of an on-write variable at one address are one copy.
  VariableState(std::shared_ptr<ReplicaGroup> group, VariableOptions options, std::vector<at::Tensor> components,
                Origin origin);
  ~VariableState();
  VariableState(const VariableState&) = delete;
  VariableState& operator=(const VariableState&) = delete;

  const VariableOptions& options() const { return options_; }
  const std::string& name() const { return options_.name; }
  const std::source_location& place() const { return origin_.place; }
  bool on_write() const { return on_write_; }
  /// Whether it is an optimizer's, beside a variable of the user's.
  bool is_slot() const { return origin_.slot; }
  /// Whether it is an on-read variable of which an optimizer updates each component by its replica's gradient.
  bool is_trained_locally() const { return origin_.local; }
  /// Whose memory it is: "cpu"; of several copies the names of all, where they differ.
  std::string where() const;
  /// Whose memory each copy is, as the placement named it; empty: LibTorch's own.
  const std::vector<std::string>& devices() const { return origin_.devices; }
  const std::shared_ptr<ReplicaGroup>& group() const { return group_; }
  /// As created: a component may have been changed by somebody else since.
  const at::Tensor& like() const { return like_; }
  int64_t bytes() const { return like_.numel() * static_cast<int64_t>(like_.element_size()); }

  /// Local replica r's tensor. Any thread.
  const at::Tensor& component(int64_t r) const { return components_[r].tensor; }
  /// The same, and what is known of it. It stays where it is.
  Component& component_at(int64_t r) { return components_[r]; }
  int64_t num_components() const { return static_cast<int64_t>(components_.size()); }

  /// The memories of an on-write variable, or of one that is trained locally.
  const std::vector<at::Tensor>& copies() const { return memory_.copies(); }
  /// Where the library's memory of local replica r's component is. It stays there until VariableMemory::bindings()
  /// changes. Not of an on-read variable that is not trained locally.
  const at::Tensor& memory(int64_t r) const { return memory_.copy_of(r); }
  /// The checksums of one copy, a word for each block, or null where nobody looks. The fused update compares and renews
  /// them in its own pass.
  uint64_t* checksums(std::size_t copy) { return memory_.checksums(copy); }
  /// Moves an on-write variable's values to other memory, such as other processes share: see VariableMemory::bind.
  void bind(std::vector<at::Tensor> copies);

  /// The value; see Variable::read.
  at::Tensor read() const;
  /// Sets every copy of an on-write variable and takes damage back. A UsageError while another value stands in.
  void write(const at::Tensor& value);
  /// Changes an on-write variable by `fn`, which is called on each copy and does the same to all. Throws the
  /// DivergenceError of a copy that something else wrote; then `fn` was not called.
  void change(FunctionRef<void(at::Tensor&)> fn);
  /// Sets one component of an on-read variable. Where the value has another shape, or where something else replaced the
  /// memory of one that is trained locally, the component gets memory of the library's again.
  void write_component(int64_t r, const at::Tensor& value);
  /// Sets every component of an on-read variable to the mean of all.
  void average_components();

  // What a failed run puts back: an on-read variable's components as the run found them, as its replicas may write them
  // in any way; an on-write variable as it was before the run's first write(). Neither where an optimizer has completed
  // a step on it since.

  /// As a run begins, on replica r's thread.
  void begin_run(int64_t r) {
    if (!on_write_) snapshots_[static_cast<std::size_t>(r)].take(component(r));
  }
  /// An optimizer's step is complete: what it has written stays.
  void keep_step() {
    take_before();
    if (!on_write_) stepped_ = true;
  }
  /// After a run that succeeded.
  void end_run() noexcept {
    take_before();
    stepped_ = false;
  }
  /// After a run that failed. Does not throw: what cannot be put back (no memory) is logged, and an on-write variable
  /// is then damaged.
  void undo_run() noexcept;
  /// Lets go of all replicas' gradients.
  void drop_gradients() noexcept;

  // Another value that stands in for an on-write variable's own, as weights' averages do for an evaluation.

  /// Puts `value` there, and keeps the variable's own. Until it is back, every write is a UsageError, and so is this.
  void stand_in(const at::Tensor& value);
  /// Puts the variable's own value back, bit by bit, if another stands in for it.
  void end_stand_in() noexcept;
  /// The value of an on-write variable, or, while another stands in for it, its own.
  const at::Tensor& own_value() const { return own_.defined() ? own_ : copies().front(); }
  /// Whether another value stands in. Outside of steps, or all replicas at rest.
  bool has_stand_in() const { return own_.defined(); }
  /// Throws the UsageError of a `call` that needs the variable's own value while another stands in. Any thread.
  void require_own_value(const char* call) const;

  /// Throws the DivergenceError of a damaged variable. Any thread.
  void require_sound() const {
    if (damaged_.load(std::memory_order_acquire)) throw_damaged();
  }
  /// Whether component r is as the library left it: call from replica r's thread. Where not, marks the variable and
  /// throws its DivergenceError; that of one that is trained locally is not kept.
  void check_component(int64_t r) {
    require_sound();
    if (!components_[r].as_left()) throw_not_as_left(r);
  }
  /// Compares every copy's checksums. Where they differ, marks the variable and throws.
  void check_memory();
  /// Marks the variable as damaged by a write found in the memory of a copy, by its checksum. Any thread.
  void damaged_in_memory(std::size_t copy = 0);

 private:
  /// What all writes to an on-write variable end in.
  void set(FunctionRef<void(at::Tensor&)> fn);
  /// All that follows the change of a copy's bytes: components, versions, checksums; takes damage back.
  void settle();
  void undo();
  /// Calls `fn`; where it throws, an on-write variable is damaged, and the log says that `failure`.
  void without_throwing(FunctionRef<void()> fn, const char* failure) noexcept;
  /// Gives a component the library's memory back, where somebody replaced it.
  void put_back(int64_t r);
  /// Takes before_ away.
  at::Tensor take_before() noexcept;
  void mark_damaged(const std::string& cause);
  /// "on replica 1", or "on one of the replicas 0, 1".
  std::string replicas_of(std::size_t copy) const;
  /// Throws the UsageError of on-read components that have become unlike each other.
  void require_alike_components() const;
  [[noreturn]] void throw_damaged() const;
  [[noreturn]] void throw_not_as_left(int64_t r);

  // All writes are looked for in on-write variables that are no slots; that of other memory in those that are trained
  // locally, where an optimizer writes.
  std::vector<Component> components_;
  at::Tensor like_;
  at::Tensor before_;  // of an on-write variable: its value before this run's writes, where there were any
  std::atomic<bool> damaged_{false};
  const bool on_write_;
  bool stepped_ = false;  // of an on-read variable: an optimizer has completed a step on it in this run
  const std::shared_ptr<ReplicaGroup> group_;
  const VariableOptions options_;
  const Origin origin_;
  std::vector<ComponentSnapshot> snapshots_;  // of an on-read variable, each taken by its replica's thread
  VariableMemory memory_;                     // of an on-write variable, and of one that is trained locally
  at::Tensor own_;                            // its own value, while another stands in for it
  mutable std::mutex damage_mutex_;
  std::string damage_;  // guarded by damage_mutex_
};

/// "mirrored", "mirrored sum", "on-read mean", ...
std::string kind_of(const VariableOptions& options);

}  // namespace lockstep::internal
