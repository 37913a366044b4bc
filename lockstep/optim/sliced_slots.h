// Slots of which each worker has its own slices alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/function_ref.h"
#include "lockstep/optim/fused_update.h"
#include "lockstep/optim/slices.h"
#include "lockstep/variable/mirrored_state.h"

namespace lockstep::internal {

class ReplicaGroup;

/// The slots keep their full shape, in memory that the system gives page by page (memory/lazy_zeros.h): a worker writes
/// its own slices, so that the others' take no memory. A slot is *sliced* while it is so. A program that asks for all
/// of it, or writes it, makes it whole, until the next step of the optimizer.
///
/// Called while all replicas are at rest, on one thread.
class SlicedSlots {
 public:
  /// `initial`, by target and slot, is what a slot begins with: this writes it into the own slices. The slots are new,
  /// and made by lazy_zeros_like(). `group` and `slices` outlive this object.
  SlicedSlots(const ReplicaGroup& group, const std::vector<UpdateTarget>& targets,
              const std::vector<std::vector<double>>& initial, const Slices& slices, std::string name);

  /// What the other workers need of this one for slice(): a letter.
  std::string report() const;
  /// A step begins, and all workers call it with the reports of all: slots that were made whole are sliced again. Those
  /// that a program has written since the last step are compared first: a DivergenceError, the same on all workers,
  /// names one that was not written on all of them, or not with the same value; then nothing is sliced.
  void slice(std::span<const std::string> reports);
  /// A call of all workers: makes all slots whole. Sends each worker's slices to all others: small slots together, up
  /// to 16 MiB at a time; a larger one by itself and in place. Throws a UsageError where another worker has other slots
  /// sliced, and what the World throws; then a slot that was sliced may stay so.
  void gather();

  // For a checkpoint, which needs a part of the others' slices alone. The slots stay sliced.

  /// The memory of the slots that are sliced, by name. Only the own slices have a meaning, and what fill() gave.
  std::map<std::string, at::Tensor> sliced() const;
  /// A call of all workers, with the same `wanted`: each worker w gets the bytes `wanted(w, name)` of the slots that
  /// are sliced, as gather() gets all of them. Throws as gather() does.
  using Wanted = FunctionRef<Slice(int64_t worker, const std::string& name)>;
  void fill(Wanted wanted);
  /// Forgets what fill() gave, and gives its memory back.
  void drop_filled() noexcept;
  /// This worker's slice of each slot, and the memory of the whole slot, by name.
  struct Own {
    Slice slice;
    at::Tensor memory;
  };
  std::map<std::string, Own> own() const;
  /// Sets this worker's slice of a slot to these bytes of `value`, which is contiguous and has the slot's dtype and
  /// shape, and makes the slot sliced. Different slots may be written at once on several threads.
  void write_own(const std::string& name, const at::Tensor& value);

 private:
  struct Slot {
    std::shared_ptr<VariableState> state;
    std::size_t target;
    MirroredState& mirrored() const { return state->as_mirrored(); }
  };
  void compare_written() const;
  static std::vector<std::vector<Slot>> in_groups(const std::vector<Slot>& slots);
  static int64_t bytes_of(const std::vector<Slot>& slots);
  std::span<std::byte> slice_of(const Slot& slot, int64_t worker) const;
  void clear_others(const Slot& slot) const;
  /// Sends what is `wanted` of the slots that are sliced, and gives them. `call` is for messages.
  std::vector<Slot> send(const char* call, Wanted wanted);
  /// What worker `from` sends to worker `to` of a slot.
  std::span<std::byte> part_of(const Slot& slot, int64_t from, int64_t to, Wanted wanted) const;
  /// Sends `part(this worker, w)` to each other worker w, and fills `part(w, this worker)`.
  template <class Part>
  void exchange(const Part& part) const;
  /// How many bytes exchange_together() needs.
  std::size_t bytes_of_messages(const std::vector<Slot>& slots, Wanted wanted) const;
  void exchange_together(const std::vector<Slot>& slots, Wanted wanted, std::span<std::byte> messages) const;

  const ReplicaGroup& group_;
  const Slices& slices_;
  const std::string name_;
  const int64_t worker_;
  std::vector<Slot> slots_;
  std::map<std::string, std::size_t> by_name_;  // their places
};

}  // namespace lockstep::internal
