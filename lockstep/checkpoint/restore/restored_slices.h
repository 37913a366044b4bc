// The slots of which a restore reads and writes only this worker's slices.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "lockstep/checkpoint/image.h"
#include "lockstep/checkpoint/take_image.h"
#include "lockstep/optim/forms/sliced_slots.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline checkpoint {

/// All slots that workers slice, so that a restore needs no memory for whole ones. None where a worker tracks values
/// with load functions of its own, because these may read the slots, and may fail: then the old values, all of them,
/// are put back. Slots that are not contiguous are none of them either.
class RestoredSlices {
 public:
  /// A call of all workers, where there are slots that workers slice.
  RestoredSlices(const Strategy& strategy, const Tracked& tracked);

  /// Whether workers slice slots, and a restore needs all of each. The same on all workers.
  bool needs_whole_slots() const { return needs_whole_slots_; }
  /// The bytes of a saved tensor that this worker needs.
  ByteRange needed(const RecordedTensor& saved, const TensorPlace& place) const;
  /// Writes this worker's slice of a slot from `value`, of which needed() says what is read. False where the item is
  /// none of these slots, and all of it must be written. Different slots may be written at once on several threads.
  bool write(const StateItem& item, const at::Tensor& value) const;

 private:
  struct Place {
    std::shared_ptr<SlicedSlots> slots;
    std::size_t place;
    SlicedSlots::Own own;
  };
  std::map<std::string, Place> slots_;  // by name
  bool needs_whole_slots_ = false;
};

}  // namespace lockstep::internal::checkpoint
