#include "lockstep/checkpoint/checkpoint_writer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <random>
#include <utility>

#include "lockstep/checkpoint/file_names.h"
#include "lockstep/checkpoint/together.h"
#include "lockstep/comm/service_thread.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"

namespace lockstep::internal {

namespace fs = std::filesystem;

namespace {

// How long a writing thread waits for another worker when its own worker waits for it; then that worker counts as
// stopped. A disk may need minutes.
constexpr std::chrono::minutes kPatience(10);

/// A number that no other save has.
uint64_t new_number() {
  std::random_device random;
  return std::uniform_int_distribution<uint64_t>(1, std::numeric_limits<int64_t>::max())(random);
}

/// Whether this worker sees the chief's file, and may write beside it. What cannot be looked at is not seen.
bool shares_folder(Files& files, const fs::path& directory, int64_t worker, uint64_t number) {
  try {
    if (!files.has(directory / writer_file_name(WriterFile::kRecord, 0, number))) return false;
    const fs::path own = directory / writer_file_name(WriterFile::kRecord, worker, number);
    files.create(own);
    files.remove_file(own);
    return true;
  } catch (const DataError&) {
    return false;
  }
}

}  // namespace

CheckpointWriter::~CheckpointWriter() {
  if (is_in_child()) return;  // with the thread and its error, which are the parent's
  // Where the run ends by an error, other workers may not write any more.
  give_up_->within(std::uncaught_exceptions() > 0 ? std::chrono::milliseconds(0) : kPatience);
  join();
  if (error_) log(LogLevel::kError, fmt::format("a checkpoint was not saved: {}", message_of(error_)));
}

bool CheckpointWriter::lock_folder() {
  if (lock_ && lock_->is_in_place()) return false;
  files_.make_folder(directory_);  // for the first time, or because somebody has removed it
  lock_ = files_.lock(directory_ / ".lock");
  if (lock_) return true;
  throw ClusterError("LS-CHECKPOINT-LOCKED",
                     fmt::format("another job saves its checkpoints into '{}'", directory_.string()),
                     "let it end, or give this job a folder of its own");
}

void CheckpointWriter::claim(const Strategy& strategy) {
  const bool looks_for_others = all_workers_write_ && strategy.num_workers() > 1;
  const auto number = static_cast<uint64_t>(strategy.on_chief([&]() -> int64_t {
    if (!lock_folder()) return 0;
    SharedSave::clean(files_, directory_);
    if (!looks_for_others) return 0;
    const uint64_t fresh = new_number();
    files_.create(directory_ / writer_file_name(WriterFile::kRecord, 0, fresh));
    return static_cast<int64_t>(fresh);
  }));
  if (number != 0) find_writers(strategy, number);
}

void CheckpointWriter::find_writers(const Strategy& strategy, uint64_t number) {
  const int64_t me = strategy.worker_index();
  const bool writes = strategy.is_chief() || shares_folder(files_, directory_, me, number);
  const at::Tensor answers = strategy.gather(
      strategy.per_replica([&](ReplicaId) { return at::full({1}, writes ? me : int64_t{-1}, at::kLong); }));
  writers_.assign(answers.data_ptr<int64_t>(), answers.data_ptr<int64_t>() + answers.numel());
  std::erase(writers_, -1);
  writers_.erase(std::unique(writers_.begin(), writers_.end()), writers_.end());
  strategy.on_chief([&] { files_.remove_file(directory_ / writer_file_name(WriterFile::kRecord, 0, number)); });
}

std::unique_ptr<SharedSave> CheckpointWriter::new_shared_save(const Strategy& strategy) {
  const auto number = static_cast<uint64_t>(strategy.on_chief([] { return static_cast<int64_t>(new_number()); }));
  std::unique_ptr<SharedSave> mine;
  all_or_none(strategy, "CheckpointManager::save", [&] {
    const auto me = std::find(writers_.begin(), writers_.end(), strategy.worker_index());
    if (me == writers_.end()) return;
    give_up_ = std::make_shared<GiveUp>();
    mine = std::make_unique<SharedSave>(files_, directory_, number, writers_,
                                        static_cast<std::size_t>(me - writers_.begin()), give_up_);
  });
  return mine;
}

void CheckpointWriter::start(std::function<void()> job) {
  thread_ = start_service_thread(0, "checkpoint writer", [this, job = std::move(job)] {
    try {
      job();
    } catch (...) {
      error_ = std::current_exception();
    }
  });
}

void CheckpointWriter::wait(const Strategy& strategy) {
  if (!is_shared()) {
    strategy.on_chief([&] { join_and_throw(); });
    return;
  }
  give_up_->within(kPatience);
  // The others first: the chief's thread waits for theirs, and what went wrong there is the reason to tell.
  try {
    all_or_none(strategy, "CheckpointManager::save", [&] {
      if (!strategy.is_chief()) join_and_throw();
    });
  } catch (...) {
    give_up_->within(std::chrono::milliseconds(0));
    join();
    error_ = nullptr;
    throw;
  }
  strategy.on_chief([&] { join_and_throw(); });
}

void CheckpointWriter::join() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::join_and_throw() {
  join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

/// In a forked child the thread does not exist.
bool CheckpointWriter::is_in_child() {
  if (!mark_.is_in_child()) return false;
  if (thread_.joinable()) thread_.detach();
  return true;
}

}  // namespace lockstep::internal
