// A copy of what a save writes, in memory that is kept from save to save.
#pragma once

#include <ATen/core/TensorBody.h>

#include "lockstep/checkpoint/folder/write_pieces.h"
#include "lockstep/checkpoint/write_plan.h"

namespace lockstep::internal::inline checkpoint {

class Snapshot {
 public:
  /// Copies, on all cores, the pieces of `mine` that are in variables' own memory, and lets `mine` refer to the copies.
  /// They stay until the next call. The plan lets go of the variables' memory.
  void take(WritePlan& plan, PlannedBytes& mine);

 private:
  at::Tensor memory_;
};

}  // namespace lockstep::internal::checkpoint
