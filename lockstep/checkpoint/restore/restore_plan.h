// What a restore will do, and whether the checkpoint fits the program.
#pragma once

#include <ATen/core/TensorBody.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/late_values.h"
#include "lockstep/checkpoint/take_image.h"
#include "lockstep/data/distributed_dataset.h"
#include "lockstep/strategy/served_state.h"
#include "lockstep/strategy/state_items.h"

namespace lockstep::internal::inline variable {
class MirroredState;
}  // namespace lockstep::internal::variable

namespace lockstep::internal::inline checkpoint {

/// What is to be written into one item.
struct Write {
  StateItem item;
  std::vector<at::Tensor> values;
  MirroredState* shared = nullptr;  // the item's variable, where all replicas share its value and it is written last
};

/// All that a restore will do, and what is wrong with it.
struct RestorePlan {
  std::vector<Write> writes;
  std::vector<std::pair<DistributedDataset, lockstep::data::Cursor>> seeks;
  std::vector<std::pair<const Tracked::Value*, std::string>> loads;
  std::vector<std::pair<std::string, StagedTable*>> tables;  // by name
  std::vector<std::string> missing, unexpected, misfits, idle_patterns;
  Late late;  // the values of `unexpected`
};

/// The plan for `image`, which lives as long as it; changes nothing. `what` names the checkpoint. A UsageError
/// (LS-CHECKPOINT-MISFIT) lists all that does not fit and that `options` do not allow.
RestorePlan plan_restore(const Image& image, const Strategy& strategy, const Tracked& tracked,
                         const RestoreOptions& options, const std::string& what);

/// Adds "3 missing: a, b, c" to a list; nothing where there are no names.
void add_names(std::string& text, const char* what, const std::vector<std::string>& names);

}  // namespace lockstep::internal::checkpoint
