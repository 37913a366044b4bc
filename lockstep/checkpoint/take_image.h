// Between a run and a checkpoint in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/image.h"
#include "lockstep/core/process/forks.h"
#include "lockstep/data/distributed_dataset.h"
#include "lockstep/strategy/state_items.h"
#include "lockstep/strategy/strategy.h"

namespace lockstep::internal::inline checkpoint {

class RestoredSlices;

/// The process in which an object was made.
class Home {
 public:
  Home();
  /// Throws the UsageError LS-FORKED, which names `call`, in a child that was forked from it.
  void require_here(const char* call) const;

 private:
  const ProcessMark mark_;
  const int64_t process_;
};

/// What a program asked a Checkpoint to save besides the strategy's own state.
struct Tracked {
  struct Value {
    std::function<std::string()> save;
    std::function<void(const std::string&)> load;
  };
  std::map<std::string, DistributedDataset> data;
  std::map<std::string, Value> values;
  Home process = {};
};

/// "mirrored", "on-read", "slot", "step-count", "learning-rate", "number", "cursor", "option".
const char* kind_text(StateItem::Kind kind);

/// The cursor that lockstep::data::to_json() wrote. A DataError that names `what` for a text that is none.
lockstep::data::Cursor cursor_of(const std::string& text, const std::string& what);

/// Throws a UsageError, which names `call`, in a merge function, where a state is half of one step and half of the
/// next, and in a forked child of the process in which `tracked` was made.
void require_at_rest(const Strategy& strategy, const Tracked& tracked, const char* call);

/// While it lives, calls of this thread on a strategy with parameter servers wait for no steps. Null for others.
std::shared_ptr<void> reading(const Strategy& strategy);

/// Of all modules: by each further name of a tensor that a module has under several, the variable's.
std::map<std::string, std::string> other_names_of(const Strategy& strategy);

/// Notes the threads of a replica, and what becomes of denormal numbers.
void note_compute_settings(const Strategy& strategy, RunRecord& run);

/// Collects everything that a run is. All workers call it, and the image has the values of all replicas. Those that all
/// replicas share are borrowed, and with one worker the others too: the next step, or write, changes them. Of a sliced
/// slot it has the memory, in which only this worker's slice has a meaning: see FilledSlots. A DivergenceError where a
/// foreign write to a mirrored variable is found.
Image take_image(const Strategy& strategy, const Tracked& tracked);

/// Whether the patterns want a name: all names where there are no patterns.
bool is_wanted(const std::vector<std::string>& patterns, const std::string& name);

/// Sets everything from `image`, which is equal on all workers, but of a slot in `slices` each worker has only the
/// bytes that it needs. Where it throws, it has changed nothing.
RestoreInfo apply(const Image& image, const Strategy& strategy, const Tracked& tracked, const RestoredSlices& slices,
                  const RestoreOptions& options, const std::string& what);

}  // namespace lockstep::internal::checkpoint
