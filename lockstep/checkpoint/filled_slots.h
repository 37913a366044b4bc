// What the writers of a checkpoint need of slots that are sliced.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/checkpoint/image.h"
#include "lockstep/optim/sliced_slots.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal {

/// While it lives, the memory of sliced slots has what this worker writes of them. Then it goes back to the system. So
/// a save needs memory for the slots of one share, not for whole ones.
class FilledSlots {
 public:
  /// A call of all workers, where there are slots that are sliced in steps. `writers[k]` writes share k of the plan of
  /// the image. Throws as plan_of() does, and what the World throws.
  FilledSlots(const Strategy& strategy, const Image& image, const std::vector<int64_t>& writers);
  ~FilledSlots();
  FilledSlots(const FilledSlots&) = delete;
  FilledSlots& operator=(const FilledSlots&) = delete;

 private:
  std::vector<std::shared_ptr<SlicedSlots>> slots_;
};

}  // namespace lockstep::internal
