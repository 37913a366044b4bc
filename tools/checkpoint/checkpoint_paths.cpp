#include "tools/checkpoint/checkpoint_paths.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "lockstep/checkpoint/folder/checkpoint_folder.h"
#include "lockstep/checkpoint/image.h"
#include "lockstep/core/error.h"

namespace lockstep::tools {

namespace fs = std::filesystem;

using internal::host_files;

bool is_checkpoint(const fs::path& path) { return host_files().has(path / internal::kManifestName); }

fs::path folder_at(const std::string& path) {
  const fs::path given(path);
  return given.has_filename() ? given : given.parent_path();
}

bool is_begun_checkpoint(const fs::path& folder) {
  if (is_checkpoint(folder)) return false;
  const bool is_empty = host_files().list(folder).empty();
  const bool has_name = folder.filename().string().starts_with("step-");
  return is_empty ? has_name : internal::has_only_remains(host_files(), folder);
}

std::string missing_text(const fs::path& folder) {
  const std::vector<std::string> names = host_files().list(folder);
  return fmt::format("'{}' has no {}, which a save writes last; it has {}", folder.string(), internal::kManifestName,
                     names.empty() ? "no file at all" : fmt::format("{}", fmt::join(names, ", ")));
}

fs::path checkpoint_at(const std::string& path) {
  if (is_checkpoint(path)) return path;
  const auto found = internal::whole_checkpoints_in(host_files(), path);
  if (!found.empty()) return found.back().path;
  if (fs::is_directory(path) && is_begun_checkpoint(folder_at(path))) {
    throw DataError("LS-CHECKPOINT-NONE", "the checkpoint is not complete: " + missing_text(folder_at(path)),
                    "let its save end, or take another one of the folder around it");
  }
  throw DataError("LS-CHECKPOINT-NONE", fmt::format("'{}' is no checkpoint, and has no whole one in it", path),
                  "name a checkpoint's folder, or the folder of --checkpoint-dir");
}

}  // namespace lockstep::tools
