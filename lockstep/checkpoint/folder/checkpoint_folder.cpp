#include "lockstep/checkpoint/folder/checkpoint_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "lockstep/checkpoint/folder/file_names.h"
#include "lockstep/checkpoint/image.h"
#include "lockstep/core/error.h"
#include "lockstep/core/function_ref.h"
#include "lockstep/core/log.h"

namespace lockstep::internal::inline checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "step-";

std::optional<int64_t> step_in(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

FoundCheckpoint look_at(Files& files, const fs::path& folder, bool has_manifest) {
  FoundCheckpoint one{
      .path = folder, .step = step_in(folder.filename().string()).value_or(0), .has_manifest = has_manifest};
  try {
    const CheckpointReader reader(files, folder);
    one.step = reader.manifest().run.step;
    one.sequence = reader.manifest().run.sequence;
  } catch (const DataError& error) {
    if (!says_of_file(error)) throw;
    one.problem = error.what();
  }
  return one;
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("{}{:010}", kPrefix, step); }

std::map<std::string, bool> manifests_in(Files& files, const fs::path& directory) {
  std::map<std::string, bool> manifests;
  for (const std::string& name : files.list(directory)) {
    if (step_in(name)) manifests[name] = files.has(directory / name / kManifestName);
  }
  return manifests;
}

std::unique_ptr<FileLock> hold_checkpoint(Files& files, const fs::path& checkpoint) {
  return files.lock(checkpoint.parent_path() / reading_mark_name(checkpoint.filename().string()));
}

FoundCheckpoint look_at_checkpoint(Files& files, const fs::path& folder) {
  return look_at(files, folder, files.has(folder / kManifestName));
}

std::vector<FoundCheckpoint> checkpoints_in(Files& files, const fs::path& directory) {
  // Another job may make one and remove others meanwhile. It must not look as if there were none.
  constexpr int kAttempts = 20;
  std::vector<FoundCheckpoint> found;
  std::map<std::string, bool> manifests = manifests_in(files, directory);
  for (int attempt = 1;; ++attempt) {
    found.clear();
    for (const auto& [name, has_manifest] : manifests) {
      found.push_back(look_at(files, directory / name, has_manifest));
    }
    std::map<std::string, bool> again = manifests_in(files, directory);
    if (again == manifests || attempt == kAttempts) break;
    manifests = std::move(again);
  }
  std::sort(found.begin(), found.end(), [](const FoundCheckpoint& a, const FoundCheckpoint& b) {
    return std::tuple(a.problem.empty(), a.sequence, a.step) < std::tuple(b.problem.empty(), b.sequence, b.step);
  });
  return found;
}

std::vector<FoundCheckpoint> whole_checkpoints_in(Files& files, const fs::path& directory) {
  std::vector<FoundCheckpoint> found = checkpoints_in(files, directory);
  std::erase_if(found, [](const FoundCheckpoint& one) { return !one.problem.empty(); });
  return found;
}

void remove_old(Files& files, const fs::path& directory, int64_t keep, int64_t keep_every, const fs::path& saved) {
  const auto attempt = [](FunctionRef<void()> work) {
    try {
      work();
    } catch (const DataError& error) {
      log(LogLevel::kWarning, fmt::format("an old checkpoint could not be removed: {}", error.what()));
    }
  };
  attempt([&] {
    const std::vector<FoundCheckpoint> found = checkpoints_in(files, directory);
    bool removed = false;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const FoundCheckpoint& one = found[i];
      if (one.path == saved) continue;
      const auto name_given = step_in(one.path.filename().string());
      if (!name_given || checkpoint_name(*name_given) != one.path.filename().string()) continue;  // no manager made it
      const bool is_new = static_cast<int64_t>(found.size() - i) <= keep;
      const bool is_kept = keep_every > 0 && one.step % keep_every == 0;
      // One with a manifest that is not whole was damaged by something else, and stays for whoever looks into that.
      if (one.has_manifest && (!one.problem.empty() || is_new || is_kept)) continue;
      attempt([&] {
        if (!files.is_folder(one.path)) return;  // a file, or a link to where somebody has moved it
        if (!one.has_manifest && !has_only_remains(files, one.path)) return;
        const fs::path mark = directory / reading_mark_name(one.path.filename().string());
        if (files.is_locked(mark)) return;  // it goes after a later save
        remove_checkpoint(files, one.path);
        if (files.has(mark)) files.remove_file(mark);
        removed = true;
      });
    }
    if (removed) files.sync_folder(directory);
  });
}

}  // namespace lockstep::internal::checkpoint
