#include "lockstep/checkpoint/checkpoint_manager.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/checkpoint_access.h"
#include "lockstep/checkpoint/checkpoint_folder.h"
#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/checkpoint/together.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"

namespace lockstep {

namespace fs = std::filesystem;

using internal::CheckpointAccess;
using internal::Files;

namespace {

/// With a folder that stays the same where the program goes to another one.
CheckpointManagerOptions settled(CheckpointManagerOptions options) {
  if (!options.directory.empty()) options.directory = fs::absolute(options.directory);
  return options;
}

}  // namespace

CheckpointManager::CheckpointManager(Checkpoint checkpoint, CheckpointManagerOptions options)
    : checkpoint_(std::move(checkpoint)), options_(settled(std::move(options))) {
  const auto refuse = [](const std::string& fact, const char* remedy) { throw UsageError("LS-OPTION", fact, remedy); };
  if (options_.directory.empty())
    refuse("a CheckpointManager has no .directory", "name the folder of the run's checkpoints");
  if (options_.keep < 1) refuse(fmt::format(".keep is {}", options_.keep), "keep at least 1 checkpoint");
  if (options_.keep_every < 0)
    refuse(fmt::format(".keep_every is {}", options_.keep_every), "give a number of steps, or 0 for none");
  writer_ = std::make_unique<internal::CheckpointWriter>(CheckpointAccess::files(checkpoint_), options_.directory,
                                                         options_.all_workers_write);
}

CheckpointManager::~CheckpointManager() = default;

void CheckpointManager::claim() {
  CheckpointAccess::tracked(checkpoint_).process.require_here("CheckpointManager::claim");
  writer_->claim(checkpoint_.strategy());
}

void CheckpointManager::wait() {
  CheckpointAccess::tracked(checkpoint_).process.require_here("CheckpointManager::wait");
  writer_->wait(checkpoint_.strategy());
}

fs::path CheckpointManager::save() {
  Strategy& strategy = checkpoint_.strategy();
  Files& files = CheckpointAccess::files(checkpoint_);
  internal::require_at_rest(strategy, CheckpointAccess::tracked(checkpoint_), "CheckpointManager::save");
  const auto phase = internal::told_phase(strategy, WorkerPhase::Kind::kSave);
  writer_->claim(strategy);
  writer_->wait(strategy);  // so there is one copy of the state at most
  const auto begin = std::chrono::steady_clock::now();
  fs::path folder = options_.directory / internal::checkpoint_name(strategy.step());
  internal::Image image = internal::capture(strategy, CheckpointAccess::tracked(checkpoint_));
  const bool is_shared = writer_->writers().size() > 1;
  std::shared_ptr<internal::SharedSave> shared = is_shared ? writer_->new_shared_save(strategy) : nullptr;
  if (!strategy.is_chief() && !shared) return waited(strategy, folder);

  const auto plan = std::make_shared<internal::WritePlan>(internal::plan_of(image));
  const auto mine = std::make_shared<internal::PlannedBytes>();
  mine->share = shared ? shared->share(*plan) : internal::share_of(*plan, 0, 1);
  mine->bytes = internal::bytes_of(*plan, mine->share);
  if (options_.async) writer_->snapshot().take(*plan, *mine);
  if (!strategy.is_chief()) {
    writer_->start([shared, plan, mine, folder] { shared->write(folder, *plan, *mine); });
    return waited(strategy, folder);
  }
  writer_->start([shared, plan, mine, folder, run = std::move(image.run), options = options_, &files, begin,
                  writer = writer_.get()]() mutable {
    const auto earlier = internal::whole_checkpoints_in(files, options.directory);
    run.sequence = earlier.empty() ? 1 : earlier.back().sequence + 1;
    internal::write_checkpoint(files, folder, run, *plan, *mine, shared.get());
    writer->took(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    if (shared) shared->end();
    internal::remove_old(files, options.directory, options.keep, options.keep_every);
  });
  return waited(strategy, folder);
}

fs::path CheckpointManager::waited(const Strategy& strategy, fs::path folder) {
  if (!options_.async) writer_->wait(strategy);
  return folder;
}

double CheckpointManager::last_save_seconds() const { return writer_->seconds(); }

std::optional<fs::path> CheckpointManager::latest() const {
  const std::string path = checkpoint_.strategy().on_chief([&]() -> std::string {
    const auto found = internal::whole_checkpoints_in(CheckpointAccess::files(checkpoint_), options_.directory);
    return found.empty() ? std::string() : found.back().path.string();
  });
  if (path.empty()) return std::nullopt;
  return fs::path(path);
}

std::optional<RestoreInfo> CheckpointManager::restore_latest(const RestoreOptions& options) {
  Strategy& strategy = checkpoint_.strategy();
  internal::require_at_rest(strategy, CheckpointAccess::tracked(checkpoint_), "CheckpointManager::restore_latest");
  const auto phase = internal::told_phase(strategy, WorkerPhase::Kind::kRestore);
  writer_->wait(strategy);
  const auto names = strategy.on_chief([&]() -> std::vector<std::string> {
    Files& files = CheckpointAccess::files(checkpoint_);
    std::vector<std::string> newest_first;
    std::vector<std::string> damaged;
    for (const auto& one : internal::checkpoints_in(files, options_.directory)) {
      if (one.problem.empty()) {
        newest_first.insert(newest_first.begin(), one.path.string());
      } else if (one.has_manifest) {  // otherwise an interrupted save has left it
        damaged.push_back(one.path.string());
        internal::log(LogLevel::kWarning, "a damaged checkpoint is passed over: " + one.problem);
      }
    }
    newest_first.insert(newest_first.end(), damaged.begin(), damaged.end());
    return newest_first;
  });
  if (names.empty()) return std::nullopt;
  return CheckpointAccess::restore_first(checkpoint_, {names.begin(), names.end()}, options);
}

}  // namespace lockstep
