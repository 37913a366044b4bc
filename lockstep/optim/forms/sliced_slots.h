// Slots of which each worker has its own slices alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/exchange/slices.h"
#include "lockstep/optim/update/update_target.h"
#include "lockstep/variable/kinds/mirrored_state.h"

namespace lockstep::internal::inline replica {
class ReplicaGroup;
}  // namespace lockstep::internal::replica

namespace lockstep::internal::inline optim {

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

  /// A slot, by its place among all.
  struct Own {
    std::string name;
    at::Tensor memory;  // of the whole slot
    Slice slice;        // this worker's
    bool is_sliced;     // otherwise all of the memory has a meaning
  };
  std::vector<Own> own() const;
  /// Which bytes each worker wants, by worker and slot.
  using Wanted = std::vector<std::vector<Slice>>;
  /// A call of all workers, with the same `wanted`: each worker gets the bytes that it wants of the slots that are
  /// sliced, in their memory. Throws as gather() does.
  void fill(const Wanted& wanted);
  /// Forgets what fill() has got, and gives its memory back.
  void drop_filled() noexcept;
  /// Sets this worker's slice of a slot to these bytes of `value`, which is contiguous and has the slot's dtype and
  /// shape, and makes the slot sliced. Different slots may be written at once on several threads.
  void write_own(std::size_t slot, const at::Tensor& value);

 private:
  struct Slot {
    std::shared_ptr<VariableState> state;
    std::size_t target;
    std::size_t place;  // among all slots
    MirroredState& mirrored() const { return state->as_mirrored(); }
  };
  void compare_written() const;
  static std::vector<std::vector<Slot>> in_groups(const std::vector<Slot>& slots);
  std::span<std::byte> slice_of(const Slot& slot, int64_t worker) const;
  void clear_others(const Slot& slot) const;
  /// Each worker gets the bytes that it wants of the sliced slots, which are returned. `call` names the call in
  /// messages.
  std::vector<Slot> exchange_wanted(const char* call, const Wanted& wanted);
  /// What worker `from` sends to worker `to` of a slot.
  std::span<std::byte> part_of(const Slot& slot, int64_t from, int64_t to, const Wanted& wanted) const;
  /// Sends `part(this worker, w)` to each other worker w, and fills `part(w, this worker)`.
  template <class Part>
  void exchange(const Part& part) const;
  /// How many bytes exchange_together() needs.
  std::size_t bytes_of_messages(const std::vector<Slot>& slots, const Wanted& wanted) const;
  void exchange_together(const std::vector<Slot>& slots, const Wanted& wanted, std::span<std::byte> messages) const;

  const ReplicaGroup& group_;
  const Slices& slices_;
  const std::string name_;
  const int64_t worker_;
  std::vector<Slot> slots_;
};

}  // namespace lockstep::internal::optim
