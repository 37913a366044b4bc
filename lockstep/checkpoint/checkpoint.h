// Saves everything that a run is, and restores it: in another process, on another number of lanes or workers, or under
// another strategy.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/data/distributed_dataset.h"

namespace lockstep {

class Strategy;

namespace internal::inline checkpoint {
class Files;
struct Image;
struct Tracked;
struct CheckpointAccess;

/// A JSON type of the program's choice, such as nlohmann::json.
template <class T>
concept JsonValue = requires(const T& value, const std::string& text) {
  { value.dump() } -> std::convertible_to<std::string>;
  { T::parse(text) } -> std::convertible_to<T>;
};
}  // namespace internal::checkpoint

/// How a checkpoint is restored. Names are those of Strategy::state_items(), and of what was tracked.
struct RestoreOptions {
  /// Leaves what the checkpoint lacks as it is, in place of failing.
  bool allow_missing = false;
  /// Passes over what the program has no place for, in place of failing.
  bool allow_unexpected = false;
  /// Takes a checkpoint of another number of replicas, with a warning. The run then goes on as it would not have gone
  /// on there: its replicas draw other random numbers, and gradients are added in another order. Each replica's
  /// component of an on-read variable becomes the mean of the saved ones, or replica 0's where the variable does not
  /// aggregate by kMean; of a kSum the first replica gets the sum, and the others get 0.
  bool allow_other_replicas = false;
  /// Restores only what has a name that fits one of these patterns: `*` stands for any text, `?` for one character. Of
  /// a tensor that a module has under several names, any of them counts.
  /// Everything else stays as it is, the step too. Empty: everything. A pattern that fits no name, of the program or of
  /// the checkpoint, is a UsageError.
  std::vector<std::string> only = {};
  /// Keeps what the program has no place for yet, and gives it to what is made later under that name, in place of
  /// failing: a module, a variable, an optimizer, an average, a named data set, or what is tracked. What is made later
  /// with another shape, dtype or kind is a UsageError (LS-CHECKPOINT-MISFIT), and is not made. What nothing has taken
  /// waits until the next restore, and Checkpoint::waiting() lists it.
  bool restore_on_create = false;
};

struct RestoreInfo {
  int64_t step = 0;                          // of the checkpoint
  std::vector<std::string> missing = {};     // what the program has and the checkpoint lacks
  std::vector<std::string> unexpected = {};  // what the checkpoint has and the program lacks, or has not made yet
  // Moving averages of variables that were restored, and slots of optimizers that have updated them, which were not
  // restored themselves: they belong to the values of before. The log names them too.
  std::vector<std::string> left_old = {};
};

/// Saves and restores the state of a strategy: variables of every kind with each replica's component, slots, step
/// counts, learning rates, moving averages, the step, the seed, the cursors of data sets that have a name, and what was
/// tracked. A resumed run gives the bits of the run that never stopped.
///
/// All workers make the same calls, outside of steps; an error of one worker is one on all. The chief alone writes.
/// In a restore each worker reads what it needs, where all see the checkpoint that the chief has found; otherwise the
/// chief reads, and sends everything. Copies share what is tracked. The strategy must outlive all of them.
class Checkpoint {
 public:
  explicit Checkpoint(Strategy& strategy);

  /// Saves and restores the cursor of this data set, or stream, under `name`. It then needs no DistributeOptions::name.
  /// Throws a UsageError where `name` is tracked already.
  void track(const std::string& name, const DistributedDataset& data);
  /// A value of the program's own: `save()` gives a JSON value (nlohmann::json) or its text, and `load(value)` is given
  /// the same type. Both are called on every worker; the chief's value is saved. A restore calls `load` after the
  /// variables are set. Where a restore fails, it calls `load` again with the value of before, which must not fail.
  template <class Save, class Load>
  void track(const std::string& name, Save save, Load load) {
    using Value = std::decay_t<std::invoke_result_t<Save&>>;
    if constexpr (internal::JsonValue<Value>) {
      track_text(
          name, [save = std::move(save)]() mutable -> std::string { return save().dump(); },
          [load = std::move(load)](const std::string& text) mutable { load(Value::parse(text)); });
    } else {
      static_assert(std::is_convertible_v<Value, std::string>,
                    "lockstep: Checkpoint::track takes a function that returns a nlohmann::json or a std::string of "
                    "JSON");
      track_text(
          name, [save = std::move(save)]() mutable -> std::string { return save(); },
          [load = std::move(load)](const std::string& text) mutable { load(text); });
    }
  }

  /// Writes a checkpoint into the folder `path`, which is made where it is not there. When it returns, the checkpoint
  /// is durable. A checkpoint that is there already is replaced at once. Where it throws, the folder has the checkpoint
  /// of before: a DataError of the disk (LS-FILE), a DivergenceError where a foreign write to a mirrored variable is
  /// found.
  void save(const std::filesystem::path& path) const;

  /// Restores the checkpoint in the folder `path`. Where it throws, nothing has changed: a DataError for a folder
  /// without a whole checkpoint (LS-CHECKPOINT-NONE, LS-CHECKPOINT-DAMAGED), a UsageError (LS-CHECKPOINT-MISFIT) that
  /// lists everything that is missing, unexpected or of another form. Another fingerprint is a warning.
  RestoreInfo restore(const std::filesystem::path& path, const RestoreOptions& options = {}) const;

  /// What RestoreOptions::restore_on_create keeps for what is made later, by name: it is in no checkpoint that is saved
  /// meanwhile, and a save warns of it.
  std::vector<std::string> waiting() const;

  Strategy& strategy() const { return *strategy_; }

 private:
  friend struct internal::CheckpointAccess;
  void track_text(const std::string& name, std::function<std::string()> save,
                  std::function<void(const std::string&)> load);

  Strategy* strategy_;
  std::shared_ptr<internal::Tracked> tracked_;
  internal::Files* files_;
};

}  // namespace lockstep
