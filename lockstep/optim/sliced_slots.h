// Slots of which each worker has its own slices alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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

  /// A step begins: slots that were made whole are sliced again.
  void slice();
  /// A call of all workers: makes all slots whole. Sends each worker's slices to all others: small slots together,
  /// about 16 MiB at a time; a larger one by itself and in place. Throws a UsageError where another worker has other
  /// slots sliced, and what the World throws; then slots stay sliced.
  void gather();

 private:
  struct Slot {
    std::shared_ptr<VariableState> state;
    std::size_t target;
    MirroredState& mirrored() const { return state->as_mirrored(); }
    char* memory() const { return static_cast<char*>(state->copies().front().data_ptr()); }
  };
  /// Calls visit(slot, worker's slice, its place in the worker's message) for slots [first, end).
  template <class Visit>
  void for_each_slice(std::size_t first, std::size_t end, int64_t worker, const Visit& visit) const;
  void exchange(std::size_t first, std::size_t end);
  void exchange_in_place(const Slot& slot);

  const ReplicaGroup& group_;
  const Slices& slices_;
  const std::string name_;
  const int64_t worker_;
  std::vector<Slot> slots_;
};

}  // namespace lockstep::internal
