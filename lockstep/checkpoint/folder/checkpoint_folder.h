// A folder with the checkpoints of one run: which are there, which is the newest, and which may go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/folder/files.h"

namespace lockstep::internal::inline checkpoint {

struct FoundCheckpoint {
  std::filesystem::path path = {};
  int64_t step = 0;
  uint64_t sequence = 0;
  std::string problem = {};   // why it is not whole; empty where it is
  bool has_manifest = false;  // without one it was never whole, or is being written
};

/// "step-0000000012"
std::string checkpoint_name(int64_t step);

/// The checkpoint in this folder, which may have any name. Sizes and headers are looked at, but not every byte. A
/// DataError (LS-FILE) where the system cannot tell whether it has a manifest.
FoundCheckpoint look_at_checkpoint(Files& files, const std::filesystem::path& folder);

/// By the name of each checkpoint in the folder: whether it has a manifest.
std::map<std::string, bool> manifests_in(Files& files, const std::filesystem::path& directory);

/// All that have a name of the form above, the whole ones last, from the oldest to the newest, looked at in this
/// way. A DataError (LS-FILE) where the system cannot tell whether one has a manifest.
std::vector<FoundCheckpoint> checkpoints_in(Files& files, const std::filesystem::path& directory);
/// The whole ones of them.
std::vector<FoundCheckpoint> whole_checkpoints_in(Files& files, const std::filesystem::path& directory);

/// While it lives, remove_old() leaves this checkpoint, in every process. Null where another one holds it, or it is
/// being removed. A DataError (LS-FILE) where its folder cannot be written to.
std::unique_ptr<FileLock> hold_checkpoint(Files& files, const std::filesystem::path& checkpoint);

/// Removes whole checkpoints but for the newest `keep`, at least 1, and those whose step is a multiple of `keep_every`
/// (0: none) or that somebody holds, and what saves that were interrupted have left. The caller has the folder's lock,
/// and nothing is being saved. Only folders with a name that checkpoint_name() gives are removed, and in them only
/// files that a save made: a folder without a manifest stays where it has anything else. What cannot be removed stays,
/// with a warning. Where the system cannot tell which checkpoints there are, nothing is removed. The folder `saved`,
/// into which the caller has just saved, stays: meanwhile Checkpoint::save may have written there, whose checkpoints
/// count as older than all of a manager's.
void remove_old(Files& files, const std::filesystem::path& directory, int64_t keep, int64_t keep_every,
                const std::filesystem::path& saved = {});

}  // namespace lockstep::internal::checkpoint
