#include "lockstep/checkpoint/folder/folder_claim.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>
#include <string>

#include "lockstep/checkpoint/folder/file_names.h"
#include "lockstep/checkpoint/folder/shared_save.h"
#include "lockstep/checkpoint/formats/strict_json.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/tensors/host_bytes.h"
#include "lockstep/strategy/served_state.h"

namespace lockstep::internal::inline checkpoint {

namespace fs = std::filesystem;

namespace {

/// Whether this worker sees the chief's probe, and may write beside it. What cannot be looked at is not seen.
bool shares_folder(Files& files, const fs::path& directory, int64_t worker, uint64_t number) {
  try {
    if (!files.has(directory / writer_file_name(WriterFile::kProbe, 0, number))) return false;
    const fs::path own = directory / writer_file_name(WriterFile::kProbe, worker, number);
    const auto missing = files.missing_protection(own);
    if (missing && !missing->lock.empty()) return false;  // the others could not see that this worker has ended
    files.create(own);
    files.remove_file(own);
    return true;
  } catch (const DataError&) {
    return false;
  }
}

/// The folder, or the next one above it that is there.
fs::path nearest_folder(Files& files, fs::path folder) {
  while (folder.has_relative_path() && !files.has(folder)) folder = folder.parent_path();
  return folder;
}

}  // namespace

std::string unprotected_text(const fs::path& folder, const MissingProtection& missing) {
  std::vector<std::string> losses;
  if (!missing.lock.empty())
    losses.push_back(fmt::format("no other job is kept from saving there too ({})", missing.lock));
  if (!missing.sync.empty())
    losses.push_back(fmt::format("a crash of the machine can lose a checkpoint's bytes ({})", missing.sync));
  if (!missing.sync_folder.empty())
    losses.push_back(fmt::format("a crash of the machine can lose a checkpoint's name ({})", missing.sync_folder));
  if (losses.empty()) return {};
  return fmt::format("the file system of the checkpoints' folder '{}' cannot protect it: {}", folder.string(),
                     fmt::join(losses, ", and "));
}

void FolderClaim::find_protection(const fs::path& folder) {
  const auto missing = files_.missing_protection(folder / writer_file_name(WriterFile::kProbe, 0, new_save_number()));
  if (!missing) return;
  knows_protection_ = true;
  const std::string text = unprotected_text(directory_, *missing);
  if (text.empty()) return;
  if (requires_protection_) {
    knows_protection_ = false;  // the next call refuses it too
    throw DataError(
        "LS-CHECKPOINT-UNPROTECTED", text,
        "choose a folder on another file system, or leave out CheckpointManagerOptions::require_protection");
  }
  log(LogLevel::kWarning, text + "; saving goes on without that");
}

void FolderClaim::look_at_protection(const Strategy& strategy) {
  const auto look = [&] {
    try {
      find_protection(nearest_folder(files_, directory_));
    } catch (const DataError& error) {
      if (error.code() == "LS-CHECKPOINT-UNPROTECTED") throw;
    }  // of another one the save says what it is
  };
  if (requires_protection_) {
    strategy.on_chief(look);
  } else if (strategy.is_chief()) {
    look();
  }
}

uint64_t new_save_number() {
  std::random_device random;
  return std::uniform_int_distribution<uint64_t>(1, std::numeric_limits<int64_t>::max())(random);
}

bool FolderClaim::lock_folder() {
  if (lock_ && lock_->is_in_place()) return false;
  files_.make_folder(directory_);  // for the first time, or because somebody has removed it
  lock_ = files_.lock(directory_ / kFolderLock);
  if (lock_) return true;
  throw ClusterError("LS-CHECKPOINT-LOCKED",
                     fmt::format("another job saves its checkpoints into '{}'", directory_.string()),
                     "let it end, or give this job a folder of its own");
}

namespace {

constexpr const char* kClaim = ".claim";

/// The claim of the run that took the folder last.
struct Claim {
  int64_t epoch = 0;
  std::string run = {};
};

std::optional<Claim> claim_of(Files& files, const fs::path& directory) {
  const fs::path path = directory / kClaim;
  if (!files.has(path)) return std::nullopt;
  const std::unique_ptr<OpenFile> file = files.open(path);
  constexpr uint64_t kLongest = 1024;
  const std::string what = fmt::format("'{}'", path.string());
  if (file->size() > kLongest) throw_damaged(what, "is longer than any claim");
  std::string text(file->size(), '\0');
  file->read(0, std::as_writable_bytes(std::span(text)));
  const nlohmann::json claim = parse_object(text, what, 1);
  return Claim{integer_in(claim, "epoch", what), text_in(claim, "run", what)};
}

[[noreturn]] void refuse_older(const fs::path& directory, int64_t mine, int64_t newest) {
  throw ClusterError("LS-CLAIM",
                     fmt::format("the folder '{}' was claimed by run {} of this job, and this is run {}",
                                 directory.string(), newest, mine),
                     "end this run: the newer one goes on from the last checkpoint");
}

}  // namespace

void FolderClaim::write_number() const {
  const fs::path unfinished = directory_ / ".claim.part";
  if (files_.has(unfinished)) files_.remove_file(unfinished);
  const std::string text = nlohmann::ordered_json{{"epoch", epoch_}, {"run", run_}}.dump() + "\n";
  {
    const std::unique_ptr<NewFile> file = files_.create(unfinished);
    file->write(0, std::as_bytes(std::span(text)));
    file->sync();
  }
  files_.rename(unfinished, directory_ / kClaim);
  files_.sync_folder(directory_);
}

void FolderClaim::number_run() {
  const std::optional<Claim> found = claim_of(files_, directory_);
  if (found && found->run == run_) return;
  if (found && epoch_ > 0) {
    lock_.reset();
    refuse_older(directory_, epoch_, found->epoch);
  }
  if (epoch_ == 0) {  // otherwise somebody has removed the folder
    epoch_ = found ? found->epoch + 1 : 1;
    run_ = fmt::format("{:016x}", new_save_number());
  }
  write_number();
}

void FolderClaim::require_newest() const {
  if (epoch_ == 0) return;
  const std::optional<Claim> found = claim_of(files_, directory_);
  if (found && found->run != run_) refuse_older(directory_, epoch_, found->epoch);
}

void FolderClaim::take(const Strategy& strategy) {
  const bool looks_for_others = all_workers_write_ && strategy.num_workers() > 1;
  constexpr int64_t kChiefAlone = -1;  // workers that write together see by their locks whether the others are there
  const int64_t number = strategy.on_chief([&]() -> int64_t {
    if (lock_folder()) {
      SharedSave::clean(files_, directory_);
      knows_writers_ = false;
    }
    if (served_state_of(strategy) != nullptr) number_run();
    if (!knows_protection_) find_protection(directory_);
    if (!lock_->is_held()) return kChiefAlone;
    if (!looks_for_others || knows_writers_) return 0;
    const uint64_t fresh = new_save_number();
    files_.create(directory_ / writer_file_name(WriterFile::kProbe, 0, fresh));
    return static_cast<int64_t>(fresh);
  });
  if (number == kChiefAlone) writers_ = {0};
  if (number > 0) find_writers(strategy, static_cast<uint64_t>(number));
}

void FolderClaim::find_writers(const Strategy& strategy, uint64_t number) {
  const int64_t me = strategy.worker_index();
  const bool writes = strategy.is_chief() || shares_folder(files_, directory_, me, number);
  const at::Tensor answers = strategy.gather(
      strategy.per_replica([&](ReplicaId) { return at::full({1}, writes ? me : int64_t{-1}, at::kLong); }));
  const std::span<const int64_t> writers = host_numbers<int64_t>(answers);
  writers_.assign(writers.begin(), writers.end());
  std::erase(writers_, -1);
  writers_.erase(std::unique(writers_.begin(), writers_.end()), writers_.end());
  strategy.on_chief([&] {
    knows_writers_ = true;
    files_.remove_file(directory_ / writer_file_name(WriterFile::kProbe, 0, number));
  });
}

}  // namespace lockstep::internal::checkpoint
