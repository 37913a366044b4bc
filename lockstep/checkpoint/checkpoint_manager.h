// The checkpoints of a run in one folder: saves beside the training, keeps the newest ones, and finds the one to go on
// from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "lockstep/checkpoint/checkpoint.h"

namespace lockstep {

struct CheckpointManagerOptions {
  std::filesystem::path directory = {};
  int64_t keep = 3;        // the newest checkpoints with a whole manifest that stay, at least 1
  int64_t keep_every = 0;  // checkpoints of steps that are multiples of this stay for ever; 0: none
  bool async = true;       // save() holds the training for a copy only, and a thread writes it
  // Each worker that sees the folder writes its share of a checkpoint, and copies no more than that. If false, the
  // chief alone writes.
  bool all_workers_write = true;
  // Refuses a folder whose file system has no locks, or no call that makes files or names durable. If false, the log
  // says once what is not protected, and saving goes on.
  bool require_protection = false;
};

/// Checkpoints named "step-0000000012" in a folder. All workers make the same calls, outside of steps; those that see
/// the chief's folder write a share each (see `.all_workers_write`), and read as Checkpoint says. One thread at a time
/// uses it. Neither copied nor moved. The strategy must outlive it.
class CheckpointManager {
 public:
  /// A UsageError without a directory, and for a `.keep` below 1 or a `.keep_every` below 0. The chief finds out what
  /// the folder's file system cannot protect: a warning, or with `.require_protection` a DataError
  /// (LS-CHECKPOINT-UNPROTECTED) on all workers.
  CheckpointManager(Checkpoint checkpoint, CheckpointManagerOptions options);
  /// Waits for a save that is under way. The log has its error, which nobody else will ask for.
  ~CheckpointManager();
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  /// Takes the folder for this job, for as long as the manager lives: a second manager that saves into the folder, in
  /// this process or another one, gets a ClusterError (LS-CHECKPOINT-LOCKED). The lock ends with its process, however
  /// that ends. The first save() does it too; a program that wants to know at its start calls this. A folder that was
  /// removed is made again, and taken again, by the next save().
  void claim();

  /// Saves the state of now as the folder's newest checkpoint and gives its path. Waits for a save that is under way,
  /// and throws its error; then nothing new is saved, and the next call saves again. With `.async` it returns when the
  /// state is copied, and the checkpoint is durable when wait() has returned; otherwise when this has returned. Older
  /// checkpoints go when the new one is durable.
  std::filesystem::path save();

  /// Restores the newest checkpoint that can be restored: one in which a piece that is to be restored is damaged is
  /// passed over with a warning. What is not restored is not read. Nothing where the folder has no checkpoint. A
  /// DataError where it has only damaged ones, and the errors of Checkpoint::restore. Waits for a save that is under
  /// way.
  std::optional<RestoreInfo> restore_latest(const RestoreOptions& options = {});

  /// The newest checkpoint whose manifest is whole, or nothing: one that is being written has none yet. It does not
  /// read the tensors; restore_latest() does.
  std::optional<std::filesystem::path> latest() const;

  /// Waits for a save that is under way: when this has returned, it is durable. Throws its error.
  void wait();

  /// How many seconds the last save took on the chief, from its call until it was durable; 0 on other workers, and
  /// before the first one is durable.
  double last_save_seconds() const;

  const Checkpoint& checkpoint() const { return checkpoint_; }
  const std::filesystem::path& directory() const { return options_.directory; }

 private:
  struct Saving;  // what is kept from save to save

  const Checkpoint checkpoint_;
  const CheckpointManagerOptions options_;
  std::unique_ptr<Saving> saving_;
};

}  // namespace lockstep
