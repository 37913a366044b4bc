#include "lockstep/checkpoint/folder_claim.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <random>

#include "lockstep/checkpoint/file_names.h"
#include "lockstep/checkpoint/shared_save.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {

namespace fs = std::filesystem;

namespace {

/// Whether this worker sees the chief's probe, and may write beside it. What cannot be looked at is not seen.
bool shares_folder(Files& files, const fs::path& directory, int64_t worker, uint64_t number) {
  try {
    if (!files.has(directory / writer_file_name(WriterFile::kProbe, 0, number))) return false;
    const fs::path own = directory / writer_file_name(WriterFile::kProbe, worker, number);
    files.create(own);
    files.remove_file(own);
    return true;
  } catch (const DataError&) {
    return false;
  }
}

}  // namespace

uint64_t new_save_number() {
  std::random_device random;
  return std::uniform_int_distribution<uint64_t>(1, std::numeric_limits<int64_t>::max())(random);
}

bool FolderClaim::lock_folder() {
  if (lock_ && lock_->is_in_place()) return false;
  files_.make_folder(directory_);  // for the first time, or because somebody has removed it
  lock_ = files_.lock(directory_ / ".lock");
  if (lock_) return true;
  throw ClusterError("LS-CHECKPOINT-LOCKED",
                     fmt::format("another job saves its checkpoints into '{}'", directory_.string()),
                     "let it end, or give this job a folder of its own");
}

void FolderClaim::take(const Strategy& strategy) {
  const bool looks_for_others = all_workers_write_ && strategy.num_workers() > 1;
  const auto number = static_cast<uint64_t>(strategy.on_chief([&]() -> int64_t {
    if (lock_folder()) {
      SharedSave::clean(files_, directory_);
      knows_writers_ = false;
    }
    if (!looks_for_others || knows_writers_) return 0;
    const uint64_t fresh = new_save_number();
    files_.create(directory_ / writer_file_name(WriterFile::kProbe, 0, fresh));
    return static_cast<int64_t>(fresh);
  }));
  if (number != 0) find_writers(strategy, number);
}

void FolderClaim::find_writers(const Strategy& strategy, uint64_t number) {
  const int64_t me = strategy.worker_index();
  const bool writes = strategy.is_chief() || shares_folder(files_, directory_, me, number);
  const at::Tensor answers = strategy.gather(
      strategy.per_replica([&](ReplicaId) { return at::full({1}, writes ? me : int64_t{-1}, at::kLong); }));
  writers_.assign(answers.data_ptr<int64_t>(), answers.data_ptr<int64_t>() + answers.numel());
  std::erase(writers_, -1);
  writers_.erase(std::unique(writers_.begin(), writers_.end()), writers_.end());
  strategy.on_chief([&] {
    knows_writers_ = true;
    files_.remove_file(directory_ / writer_file_name(WriterFile::kProbe, 0, number));
  });
}

}  // namespace lockstep::internal
