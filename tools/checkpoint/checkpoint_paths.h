// Which folder a path of `lockstep checkpoint` means.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::tools {

/// Whether the folder has a manifest.
bool is_checkpoint(const std::filesystem::path& path);
/// "runs/" is "runs".
std::filesystem::path folder_at(const std::string& path);
/// Whether it is the folder of a checkpoint that is being saved, or whose save was interrupted.
bool is_begun_checkpoint(const std::filesystem::path& folder);
/// What a checkpoint lacks that is not complete.
std::string missing_text(const std::filesystem::path& folder);
/// The checkpoint that a path means: itself, or the newest whole one in it. A DataError where there is none.
std::filesystem::path checkpoint_at(const std::string& path);

}  // namespace lockstep::tools
