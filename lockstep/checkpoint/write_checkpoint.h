// Writing a planned checkpoint into a folder: alone, or with other workers that see the same folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/checkpoint/files.h"
#include "lockstep/checkpoint/write_plan.h"

namespace lockstep::internal {

/// What one writer writes.
struct PlannedBytes {
  Share share = {};
  std::vector<std::span<const std::byte>> bytes = {};  // of each piece of the share
};

class SharedSave;

/// Writes what the chief, or a worker that writes alone, writes of a checkpoint: `mine`, everything around the pieces,
/// and the manifest, when the others have written theirs (`shared`; null: there are none). The contract is that of
/// save_image().
void write_checkpoint(Files& files, const std::filesystem::path& folder, const RunRecord& run, const WritePlan& plan,
                      const PlannedBytes& mine, const SharedSave* shared);

/// Writes pieces into the plan's files, `parts`, and gives their checksums.
std::vector<std::string> write_pieces(Files& files, const WritePlan& plan, const PlannedBytes& mine,
                                      const std::vector<std::unique_ptr<NewFile>>& parts);

}  // namespace lockstep::internal
