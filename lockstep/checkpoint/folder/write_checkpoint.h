// Writing a planned checkpoint into a folder: alone, or with other workers that see the same folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "lockstep/checkpoint/folder/files.h"
#include "lockstep/checkpoint/folder/write_pieces.h"
#include "lockstep/checkpoint/write_plan.h"

namespace lockstep::internal::inline checkpoint {

/// The other writers of a checkpoint.
struct OtherWriters {
  uint64_t save = 0;  // the number by which all its writers know its files
  /// Returns when they have written and synced their pieces, and gives their checksums; throws where one of them will
  /// not.
  std::function<void(const GiveChecksums&)> wait;
};

/// Writes a whole plan. The contract is that of save_image().
void save_plan(Files& files, const std::filesystem::path& folder, const RunRecord& run, const WritePlan& plan);

/// Writes what the chief, or a worker that writes alone, writes of a checkpoint: `mine`, everything around the pieces,
/// and the manifest, when the others have written theirs (null: there are none). `require_wanted` is called before the
/// manifest gets its name; where it throws, there is no new checkpoint. The contract is that of save_image().
void write_checkpoint(Files& files, const std::filesystem::path& folder, const RunRecord& run, const WritePlan& plan,
                      const PlannedBytes& mine, const OtherWriters* others,
                      const std::function<void()>& require_wanted = {});

}  // namespace lockstep::internal::checkpoint
