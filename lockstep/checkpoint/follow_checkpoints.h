// Reading the checkpoints of a run that goes on in other processes.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/folder/checkpoint_watch.h"
#include "lockstep/checkpoint/folder/files.h"

namespace lockstep {
class CheckpointManager;
class Strategy;
}  // namespace lockstep

namespace lockstep::internal::inline checkpoint {

/// Follows the checkpoints of one folder, on one thread.
class CheckpointFollower {
 public:
  /// `files` must live longer.
  CheckpointFollower(Files& files, std::filesystem::path directory);

  using Read = std::function<void(const std::filesystem::path&)>;

  /// Calls `restore(path)` and then `use(path)` for the newest checkpoint, where that is newer than the last one that
  /// was read; false where there is none. Meanwhile no manager removes this checkpoint, if the folder's file system has
  /// locks and this process may write there. Where `restore` throws a DataError, the checkpoint is passed over with a
  /// warning, or without where it was removed before it was held. All other exceptions are the caller's.
  bool look(const Read& restore, const Read& use);

  /// Whether a run holds the folder: it has saved there, and its process lives.
  bool is_held() const;

 private:
  Files& files_;
  const std::filesystem::path directory_;
  CheckpointWatch watch_;
  std::map<std::string, bool> found_;  // manifests_in(), when the folder was looked through last
  std::optional<std::chrono::steady_clock::time_point> looked_at_;
  bool has_warned_ = false;  // that checkpoints are not held
};

/// The managers of this strategy that live, in the order in which they were made. Any thread; a manager may go at any
/// time that its owner chooses.
std::vector<const CheckpointManager*> managers_of(const Strategy& strategy);

}  // namespace lockstep::internal::checkpoint
