#include "lockstep/checkpoint/checkpoint_manager.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/checkpoint_access.h"
#include "lockstep/checkpoint/checkpoint_folder.h"
#include "lockstep/checkpoint/together.h"
#include "lockstep/comm/service_thread.h"
#include "lockstep/core/error.h"
#include "lockstep/core/forks.h"
#include "lockstep/core/log.h"

namespace lockstep {

namespace fs = std::filesystem;

using internal::CheckpointAccess;
using internal::Files;

/// Writes one checkpoint at a time, on a thread of its own. The thread touches nothing but its job, error_, which is
/// read after it was joined, and seconds_.
class CheckpointManager::Writer {
 public:
  ~Writer() {
    if (is_in_child()) return;  // with the thread and its error, which are the parent's
    join();
    if (error_) internal::log(LogLevel::kError, fmt::format("a checkpoint was not saved: {}", message_of(error_)));
  }

  void claim(Files& files, const fs::path& directory) {
    if (lock_ && lock_->is_in_place()) return;
    files.make_folder(directory);  // for the first time, or because somebody has removed it
    lock_ = files.lock(directory / ".lock");
    if (lock_) return;
    throw ClusterError("LS-CHECKPOINT-LOCKED",
                       fmt::format("another job saves its checkpoints into '{}'", directory.string()),
                       "let it end, or give this job a folder of its own");
  }

  /// Throws the error of the job that was started last.
  void wait() {
    join();
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  /// Any thread.
  void took(double seconds) { seconds_ = seconds; }
  double seconds() const { return seconds_; }

  void start(std::function<void()> job) {
    thread_ = internal::start_service_thread(0, "checkpoint writer", [this, job = std::move(job)] {
      try {
        job();
      } catch (...) {
        error_ = std::current_exception();
      }
    });
  }

 private:
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  /// In a forked child the thread does not exist.
  bool is_in_child() {
    if (!mark_.is_in_child()) return false;
    if (thread_.joinable()) thread_.detach();
    return true;
  }

  const internal::ProcessMark mark_;
  std::unique_ptr<internal::FolderLock> lock_;
  std::exception_ptr error_;
  std::atomic<double> seconds_{0};
  std::thread thread_;
};

namespace {

/// With a folder that stays the same where the program goes to another one.
CheckpointManagerOptions settled(CheckpointManagerOptions options) {
  if (!options.directory.empty()) options.directory = fs::absolute(options.directory);
  return options;
}

}  // namespace

CheckpointManager::CheckpointManager(Checkpoint checkpoint, CheckpointManagerOptions options)
    : checkpoint_(std::move(checkpoint)), options_(settled(std::move(options))), writer_(std::make_unique<Writer>()) {
  const auto refuse = [](const std::string& fact, const char* remedy) { throw UsageError("LS-OPTION", fact, remedy); };
  if (options_.directory.empty())
    refuse("a CheckpointManager has no .directory", "name the folder of the run's checkpoints");
  if (options_.keep < 1) refuse(fmt::format(".keep is {}", options_.keep), "keep at least 1 checkpoint");
  if (options_.keep_every < 0)
    refuse(fmt::format(".keep_every is {}", options_.keep_every), "give a number of steps, or 0 for none");
}

CheckpointManager::~CheckpointManager() = default;

void CheckpointManager::claim() {
  CheckpointAccess::tracked(checkpoint_).process.require_here("CheckpointManager::claim");
  checkpoint_.strategy().on_chief([&] { writer_->claim(CheckpointAccess::files(checkpoint_), options_.directory); });
}

void CheckpointManager::wait() {
  CheckpointAccess::tracked(checkpoint_).process.require_here("CheckpointManager::wait");
  checkpoint_.strategy().on_chief([&] { writer_->wait(); });
}

fs::path CheckpointManager::save() {
  Strategy& strategy = checkpoint_.strategy();
  Files& files = CheckpointAccess::files(checkpoint_);
  internal::require_at_rest(strategy, CheckpointAccess::tracked(checkpoint_), "CheckpointManager::save");
  const auto phase = internal::told_phase(strategy, WorkerPhase::Kind::kSave);
  strategy.on_chief([&] {
    writer_->claim(files, options_.directory);
    writer_->wait();  // so there is one copy of the state at most
  });
  const auto begin = std::chrono::steady_clock::now();
  fs::path folder = options_.directory / internal::checkpoint_name(strategy.step());
  const auto image =
      std::make_shared<internal::Image>(internal::capture(strategy, CheckpointAccess::tracked(checkpoint_)));
  auto job = [image, folder, options = options_, &files, begin, writer = writer_.get()] {
    const auto earlier = internal::whole_checkpoints_in(files, options.directory);
    image->run.sequence = earlier.empty() ? 1 : earlier.back().sequence + 1;
    internal::save_image(files, folder, *image);
    writer->took(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    internal::remove_old(files, options.directory, options.keep, options.keep_every);
  };
  if (!options_.async) {
    strategy.on_chief(job);
  } else if (strategy.is_chief()) {
    writer_->start(std::move(job));
  }
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
  const auto names = strategy.on_chief([&]() -> std::vector<std::string> {
    writer_->wait();
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
