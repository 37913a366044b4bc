#include "lockstep/checkpoint/follow_checkpoints.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "lockstep/checkpoint/folder/file_names.h"
#include "lockstep/checkpoint/folder/manifest.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"

namespace lockstep::internal::inline checkpoint {

namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

/// Holds a checkpoint, and takes its mark away in the end.
struct Hold {
  Hold(Files& given, const fs::path& checkpoint)
      : files(given), mark(checkpoint.parent_path() / reading_mark_name(checkpoint.filename().string())) {}
  ~Hold() {
    try {
      if (lock) files.remove_file(mark);
    } catch (const DataError&) {  // whoever removes the checkpoint removes it too
    }
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  Files& files;
  const fs::path mark;
  std::unique_ptr<FileLock> lock;
};

/// A checkpoint that is saved again under its name changes no name of the folder.
constexpr std::chrono::seconds kLookThroughAfter(10);

}  // namespace

CheckpointFollower::CheckpointFollower(Files& files, fs::path directory)
    : files_(files), directory_(std::move(directory)) {}

bool CheckpointFollower::look(const Read& restore, const Read& use) {
  std::map<std::string, bool> found = manifests_in(files_, directory_);
  if (looked_at_ && found == found_ && Clock::now() - *looked_at_ < kLookThroughAfter) return false;
  const std::vector<FoundCheckpoint> whole = whole_checkpoints_in(files_, directory_);
  const FoundCheckpoint* const newest = watch_.next(whole);
  if (newest == nullptr) {
    found_ = std::move(found);
    looked_at_ = Clock::now();
    return false;
  }
  looked_at_.reset();  // others may have come when this one is read
  Hold hold(files_, newest->path);
  try {
    hold.lock = hold_checkpoint(files_, newest->path);
  } catch (const DataError& error) {
    if (!std::exchange(has_warned_, true)) {
      log(LogLevel::kWarning, fmt::format("checkpoints may be removed while they are read: {}", error.what()));
    }
  }
  const auto is_gone = [&] { return !files_.has(newest->path / kManifestName); };
  if (is_gone()) return true;  // it was being removed
  try {
    restore(newest->path);
  } catch (const DataError& error) {
    if (is_gone()) return true;
    log(LogLevel::kWarning, fmt::format("the checkpoint '{}' is passed over: {}", newest->path.string(), error.what()));
    watch_.is_unreadable(*newest);
    return true;
  }
  use(newest->path);
  watch_.was_read(*newest);
  return true;
}

bool CheckpointFollower::is_held() const { return files_.is_locked(directory_ / kFolderLock); }

}  // namespace lockstep::internal::checkpoint
