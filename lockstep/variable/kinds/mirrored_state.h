// An on-write variable: its components are equal at any time, and foreign writes are found.
#pragma once

#include <ATen/core/TensorBody.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline variable {

/// What a worker has of a value: all of it, but for a slot that workers divide (optim/forms/sliced_slots.h).
enum class Slicing : uint8_t {
  kWritten,   // all of it, as the library wrote it on this worker
  kGathered,  // all of it, as the owners of its slices have it
  kSliced,    // this worker's own slices; the others are zeros that take no memory
  // This worker's own slices, and of the others what SlicedSlots::fill() has got; the rest means nothing, and all may
  // take memory.
  kFilled,
};

/// One or more copies in memory of the library. Components of several replicas may lie in one copy, each as a tensor of
/// its own, with its own gradient and version counter.
///
/// Invariant: between the library's writes each component has the address, layout and version that component.h
/// records, and each block of each copy has the checksum that VariableMemory records. Every write of the library ends
/// in settle(), or in the fused update, which renew both. So whatever differs later is a *foreign write*: the variable
/// is then *damaged*, and stays so until it is written as a whole. Slots have no checksums.
class MirroredState final : public VariableState {
 public:
  MirroredState(std::shared_ptr<ReplicaGroup> group, std::shared_ptr<VariableCounts> counts, VariableOptions options,
                const std::vector<at::Tensor>& components, const Origin& origin);
  ~MirroredState() override;

  /// Throws the DivergenceError of a damaged variable.
  at::Tensor read() const override;
  /// Sets every copy; a damaged variable is sound again.
  void write(const at::Tensor& value) override;
  /// Sets these bytes of a slot, whose other bytes mean nothing: the caller sets the slicing afterwards. A damaged slot
  /// is sound again.
  void write_bytes(int64_t begin, std::span<const std::byte> bytes);
  /// Changes the value by `fn`, which is called on each copy and must do the same to all. Throws the DivergenceError
  /// of a foreign write; then `fn` was not called.
  void change(FunctionRef<void(at::Tensor&)> fn);
  /// Moves the values to other memory, for example to memory that processes share: see VariableMemory::bind.
  void bind(std::vector<at::Tensor> copies);

  // Memory that all workers of the host map: see VariableMemory. While all replicas are at rest.

  bool can_move_to_halves() const { return memory_.can_move_to_halves(); }
  bool has_halves() const { return memory_.has_halves(); }
  void give_halves(c10::intrusive_ptr<HostHalves> halves) { memory_.give_halves(std::move(halves)); }
  const HostHalves::Half& next_half() const { return memory_.next_half(); }
  /// Call Component::moved() for each component afterwards.
  void move_to_next_half() noexcept { memory_.move_to_next_half(); }
  /// Moves the value to memory of this worker alone, if it is not there.
  void leave_halves();

  /// SlicedSlots alone sets it, while all replicas are at rest. Every write of the value makes it kWritten.
  Slicing slicing() const { return slicing_; }
  void set_slicing(Slicing slicing) { slicing_ = slicing; }
  bool is_sliced() const override { return slicing_ == Slicing::kSliced || slicing_ == Slicing::kFilled; }

  void keep_step() override { take_before(); }
  void end_run() noexcept override { take_before(); }
  /// Puts back the value before the first write of a sound variable since the run began, or since its last completed
  /// step of an optimizer. A variable that cannot be rolled back is damaged.
  void undo_run() noexcept override;

  // A moving average stands in for the variable's own value during an evaluation.

  /// Puts `value` into all copies and keeps the variable's own value. Until end_stand_in(), every write is a
  /// UsageError, and so is a second stand_in().
  void stand_in(const at::Tensor& value);
  /// Puts the variable's own value back, bit by bit, if another stands in for it.
  void end_stand_in() noexcept;
  /// The variable's own value, also while another stands in for it.
  const at::Tensor& own_value() const { return own_.defined() ? own_ : copies().front(); }
  void require_own_value(const char* call) const override;

  void require_sound() const override {
    if (damaged_.load(std::memory_order_acquire)) throw_damaged();
  }
  void check_memory() override;
  /// Marks the variable as damaged by a foreign write into the memory of a copy. Any thread.
  void damaged_in_memory(std::size_t copy);
  /// The same for a copy that `replicas` share. They may belong to other workers.
  void damaged_in_memory_of(const std::vector<int64_t>& replicas);

 private:
  [[noreturn]] void throw_not_as_left(int64_t r) override;
  [[noreturn]] void throw_damaged() const;
  /// Changes all copies by `fn`.
  void set(FunctionRef<void(at::Tensor&)> fn);
  /// Records the copies' bytes as the library's: components, versions, checksums. The variable is sound again.
  void settle();
  void undo();
  /// Calls `fn`. Where it throws, the variable is damaged, and the log says so with `failure`.
  void without_throwing(FunctionRef<void()> fn, const char* failure) noexcept;
  /// Takes before_ away.
  at::Tensor take_before() noexcept;
  void mark_damaged(std::string_view cause);
  std::vector<int64_t> replicas_of(std::size_t copy) const;

  at::Tensor before_;              // the value that undo_run() puts back; undefined where nothing was written
  bool before_is_sliced_ = false;  // whether before_ has this worker's slices alone
  Slicing slicing_ = Slicing::kWritten;
  at::Tensor own_;  // the variable's own value, while another stands in for it
  std::atomic<bool> damaged_{false};
  mutable std::mutex damage_mutex_;
  std::string damage_;  // guarded by damage_mutex_
};

}  // namespace lockstep::internal::variable
