// How the manager, and tests, reach what is behind a Checkpoint.
#pragma once

#include <filesystem>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/read_together.h"
#include "lockstep/checkpoint/take_image.h"

namespace lockstep::internal::inline checkpoint {

struct CheckpointAccess {
  static Files& files(const Checkpoint& checkpoint) { return *checkpoint.files_; }
  /// Another file system, for tests; it outlives the checkpoint.
  static void set_files(Checkpoint& checkpoint, Files& files) { checkpoint.files_ = &files; }
  static const Tracked& tracked(const Checkpoint& checkpoint) { return *checkpoint.tracked_; }

  /// Restores the first of `folders` that is whole, and where none is, the first that `list_again` gives; a warning
  /// names the first one that is not whole. All workers call it, and the chief's arguments count. Throws the error of
  /// the first one where none is whole.
  static RestoreInfo restore_first(const Checkpoint& checkpoint, const std::vector<std::filesystem::path>& folders,
                                   const RestoreOptions& options, const ListFolders& list_again = {});
};

}  // namespace lockstep::internal::checkpoint
