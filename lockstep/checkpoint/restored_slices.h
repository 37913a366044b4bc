// The slots of which a restore reads and writes this worker's slices alone.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "lockstep/checkpoint/capture.h"
#include "lockstep/checkpoint/image.h"
#include "lockstep/optim/sliced_slots.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal {

/// All slots that are sliced, so that a restore needs no memory for whole ones. None where the program tracks values
/// with load functions of its own, because these may read the slots, and may fail: then the old values, all of them,
/// are put back. The same on all workers, as the values that they track.
class RestoredSlices {
 public:
  RestoredSlices(const Strategy& strategy, const Tracked& tracked);

  /// The bytes of a saved tensor that this worker needs.
  ByteRange needed(const RecordedTensor& saved, const TensorPlace& place) const;
  /// Writes this worker's slice of a slot from `value`, of which needed() says what is read. False where the slot is
  /// none of these, and all of it must be written. Different slots may be written at once on several threads.
  bool write(const StateItem& item, const at::Tensor& value) const;

 private:
  struct Own {
    std::shared_ptr<SlicedSlots> slots;
    SlicedSlots::Own own;
  };
  std::map<std::string, Own> slots_;  // by name
};

}  // namespace lockstep::internal
