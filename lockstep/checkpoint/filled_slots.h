// What the writers of a checkpoint need of slots that are sliced.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/checkpoint/write_plan.h"
#include "lockstep/optim/forms/sliced_slots.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline checkpoint {

/// While it lives, the memory of sliced slots has what this worker writes of them. Then it goes back to the system. So
/// a save needs memory for the slots of one share, not for whole ones.
class FilledSlots {
 public:
  /// A call of all workers, with the same arguments, where there are slots that workers slice. `plan` refers to the
  /// memory of the slots; `writers[k]` writes share k of it. Throws what the World throws.
  FilledSlots(const Strategy& strategy, const WritePlan& plan, const std::vector<int64_t>& writers);
  ~FilledSlots();
  FilledSlots(const FilledSlots&) = delete;
  FilledSlots& operator=(const FilledSlots&) = delete;

 private:
  explicit FilledSlots(const Strategy& strategy);  // so that the destructor runs where fill() throws

  std::vector<std::shared_ptr<SlicedSlots>> slots_;
};

}  // namespace lockstep::internal::checkpoint
