#include "lockstep/checkpoint/checkpoint_manager.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/background_save.h"
#include "lockstep/checkpoint/checkpoint_access.h"
#include "lockstep/checkpoint/filled_slots.h"
#include "lockstep/checkpoint/folder/checkpoint_folder.h"
#include "lockstep/checkpoint/folder/folder_claim.h"
#include "lockstep/checkpoint/folder/shared_save.h"
#include "lockstep/checkpoint/folder/together.h"
#include "lockstep/checkpoint/folder/write_checkpoint.h"
#include "lockstep/checkpoint/follow_checkpoints.h"
#include "lockstep/checkpoint/snapshot.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/replica/replica_group.h"

namespace lockstep {

namespace fs = std::filesystem;

using internal::CheckpointAccess;
using internal::Files;

/// Members are destroyed from the last one to the first one, so the thread ends before what it uses.
struct CheckpointManager::Saving {
  Saving(const Checkpoint& checkpoint, const CheckpointManagerOptions& given)
      : files(CheckpointAccess::files(checkpoint)),
        options(given),
        claim(files, options.directory, options.all_workers_write, options.require_protection),
        background(checkpoint.strategy()) {}

  /// All workers: returns when a save that is under way has ended, and throws its error. Then who writes is found out
  /// anew: a worker may have lost its disk.
  void wait() {
    try {
      background.wait();
    } catch (...) {
      claim.look_again();
      throw;
    }
  }

  using Time = std::chrono::steady_clock::time_point;
  /// The job that writes the share of writer `index` of `plan`. With `.async` training may go on when it returns. The
  /// call of save() began at `begin`.
  std::function<void()> prepare(const fs::path& folder, internal::RunRecord run,
                                std::shared_ptr<internal::WritePlan> plan, uint64_t number, std::size_t index,
                                Time begin);

  Files& files;
  const CheckpointManagerOptions options;
  internal::FolderClaim claim;
  internal::Snapshot snapshot;
  internal::BackgroundSave background;
};

std::function<void()> CheckpointManager::Saving::prepare(const fs::path& folder, internal::RunRecord run,
                                                         std::shared_ptr<internal::WritePlan> plan, uint64_t number,
                                                         std::size_t index, Time begin) {
  const auto deadline = background.new_deadline();
  std::shared_ptr<internal::SharedSave> shared;
  const std::vector<int64_t>& writers = claim.writers();
  if (writers.size() > 1) {
    shared = std::make_shared<internal::SharedSave>(files, options.directory, number, writers, index, deadline);
  }
  const auto mine = std::make_shared<internal::PlannedBytes>();
  mine->share = shared ? shared->share(*plan) : internal::share_of(*plan, 0, 1);
  mine->bytes = internal::bytes_of(*plan, mine->share);
  if (options.async) snapshot.take(*plan, *mine);
  if (index > 0) return [shared = std::move(shared), plan, mine, folder] { shared->write(folder, *plan, *mine); };
  return [this, shared = std::move(shared), plan, mine, folder, run = std::move(run), begin, deadline]() mutable {
    const auto earlier = internal::whole_checkpoints_in(files, options.directory);
    run.sequence = earlier.empty() ? 1 : earlier.back().sequence + 1;
    const internal::OtherWriters others{
        .save = shared ? shared->number() : 0,
        .wait = [&](const internal::GiveChecksums& give) { shared->wait_for_others(folder, *plan, give); }};
    internal::write_checkpoint(files, folder, run, *plan, *mine, shared ? &others : nullptr, [&] {
      deadline->require_wanted(folder);
      claim.require_newest();
    });
    background.set_last_seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    if (shared) shared->end();
    internal::remove_old(files, options.directory, options.keep, options.keep_every, folder);
  };
}

namespace {

/// With a folder that stays the same where the program goes to another one.
CheckpointManagerOptions settled(CheckpointManagerOptions options) {
  if (options.directory.empty()) return options;
  std::error_code error;
  const fs::path absolute = fs::absolute(options.directory, error);
  if (error) {
    throw DataError("LS-FILE",
                    fmt::format("the folder '{}' cannot be found: {}", options.directory.string(), error.message()),
                    "give a path from the root, or run the program in a folder that is there");
  }
  options.directory = absolute;
  return options;
}

/// Those that live, of all strategies. Managers add and remove themselves.
class LivingManagers {
 public:
  void add(const CheckpointManager& one) {
    const std::lock_guard<std::mutex> lock(mutex_);
    all_.push_back(&one);
  }
  void remove(const CheckpointManager& one) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase(all_, &one);
  }
  std::vector<const CheckpointManager*> of(const Strategy& strategy) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<const CheckpointManager*> found;
    for (const CheckpointManager* one : all_) {
      if (&one->checkpoint().strategy() == &strategy) found.push_back(one);
    }
    return found;
  }

 private:
  std::mutex mutex_;
  std::vector<const CheckpointManager*> all_;  // guarded by mutex_
};

LivingManagers& living_managers() {
  static auto* const managers = new LivingManagers;  // never destroyed: static managers may live longer
  return *managers;
}

}  // namespace

std::vector<const CheckpointManager*> internal::checkpoint::managers_of(const Strategy& strategy) {
  return living_managers().of(strategy);
}

CheckpointManager::CheckpointManager(Checkpoint checkpoint, CheckpointManagerOptions options)
    : checkpoint_(std::move(checkpoint)), options_(settled(std::move(options))) {
  const auto refuse = [](const std::string& fact, const char* remedy) { throw UsageError("LS-OPTION", fact, remedy); };
  if (options_.directory.empty())
    refuse("a CheckpointManager has no .directory", "name the folder of the run's checkpoints");
  if (options_.keep < 1) refuse(fmt::format(".keep is {}", options_.keep), "keep at least 1 checkpoint");
  if (options_.keep_every < 0)
    refuse(fmt::format(".keep_every is {}", options_.keep_every), "give a number of steps, or 0 for none");
  saving_ = std::make_unique<Saving>(checkpoint_, options_);
  saving_->claim.look_at_protection(checkpoint_.strategy());
  living_managers().add(*this);
}

CheckpointManager::~CheckpointManager() { living_managers().remove(*this); }

void CheckpointManager::claim() {
  Strategy& strategy = checkpoint_.strategy();
  internal::require_at_rest(strategy, CheckpointAccess::tracked(checkpoint_), "CheckpointManager::claim");
  const auto reading = internal::reading(strategy);
  saving_->background.let_end();
  saving_->claim.take(strategy);
}

void CheckpointManager::wait() {
  Strategy& strategy = checkpoint_.strategy();
  internal::require_at_rest(strategy, CheckpointAccess::tracked(checkpoint_), "CheckpointManager::wait");
  const auto reading = internal::reading(strategy);
  const auto phase = internal::told_phase(strategy, WorkerPhase::Kind::kSave);
  saving_->wait();
}

fs::path CheckpointManager::save() {
  Strategy& strategy = checkpoint_.strategy();
  internal::require_at_rest(strategy, CheckpointAccess::tracked(checkpoint_), "CheckpointManager::save");
  const auto reading = internal::reading(strategy);
  const auto phase = internal::told_phase(strategy, WorkerPhase::Kind::kSave);
  saving_->wait();  // so there is one copy of the state at most
  saving_->claim.take(strategy);
  const auto begin = std::chrono::steady_clock::now();
  internal::RunRecord run;
  const auto plan = std::make_shared<internal::WritePlan>();
  {
    const internal::Image image = internal::take_image(strategy, CheckpointAccess::tracked(checkpoint_));
    internal::all_or_none(strategy, "CheckpointManager::save", [&] { *plan = internal::plan_of(image); });
    run = image.run;
  }
  const fs::path folder = options_.directory / internal::checkpoint_name(run.step);
  const std::vector<int64_t>& writers = saving_->claim.writers();
  const internal::FilledSlots filled(strategy, *plan, writers);  // until this worker's share is copied, or written
  const auto number = static_cast<uint64_t>(writers.size() == 1 ? 0 : strategy.on_chief([&]() -> int64_t {
    internal::SharedSave::clean(CheckpointAccess::files(checkpoint_), options_.directory);
    return static_cast<int64_t>(internal::new_save_number());
  }));
  std::function<void()> job;
  try {
    internal::all_or_none(strategy, "CheckpointManager::save", [&] {
      const auto me = std::find(writers.begin(), writers.end(), strategy.worker_index());
      if (me == writers.end()) return;
      const auto index = static_cast<std::size_t>(me - writers.begin());
      job = saving_->prepare(folder, std::move(run), plan, number, index, begin);
    });
    // All have their marks now, so nobody takes a worker that has not begun for one that has ended.
    internal::all_or_none(strategy, "CheckpointManager::save", [&] {
      if (job) saving_->background.start(strategy.worker_index(), std::move(job));
    });
  } catch (...) {
    saving_->background.give_up();
    throw;
  }
  if (options_.async) return folder;
  try {
    saving_->wait();
  } catch (...) {
    saving_->background.abandon();  // it reads what `filled` drops, and what the next step changes
    throw;
  }
  return folder;
}

double CheckpointManager::last_save_seconds() const { return saving_->background.last_seconds(); }

std::optional<fs::path> CheckpointManager::latest() const {
  internal::CallScope::refuse_in_step("CheckpointManager::latest",
                                      "no state is at rest: call it when run() has returned");
  const auto reading = internal::reading(checkpoint_.strategy());
  const std::string path = checkpoint_.strategy().on_chief([&]() -> std::string {
    const auto found = internal::whole_checkpoints_in(CheckpointAccess::files(checkpoint_), options_.directory);
    return found.empty() ? std::string() : found.back().path.string();
  });
  if (path.empty()) return std::nullopt;
  return fs::path(path);
}

namespace {

/// The checkpoints of a folder, the newest ones first, and damaged ones, which `warn` is told of, behind the whole
/// ones.
std::vector<fs::path> newest_first(Files& files, const fs::path& directory,
                                   const std::function<void(const std::string& problem)>& warn) {
  std::vector<fs::path> whole;
  std::vector<fs::path> damaged;
  for (const auto& one : internal::checkpoints_in(files, directory)) {
    if (one.problem.empty()) {
      whole.insert(whole.begin(), one.path);
    } else if (one.has_manifest) {  // otherwise an interrupted save has left it
      damaged.insert(damaged.begin(), one.path);
      warn(one.problem);
    }
  }
  whole.insert(whole.end(), damaged.begin(), damaged.end());
  return whole;
}

}  // namespace

std::optional<RestoreInfo> CheckpointManager::restore_latest(const RestoreOptions& options) {
  Strategy& strategy = checkpoint_.strategy();
  internal::require_at_rest(strategy, CheckpointAccess::tracked(checkpoint_), "CheckpointManager::restore_latest");
  const auto phase = internal::told_phase(strategy, WorkerPhase::Kind::kRestore);
  saving_->wait();
  Files& files = CheckpointAccess::files(checkpoint_);
  std::vector<fs::path> folders;  // of the chief
  const bool has_any = strategy.on_chief([&] {
    folders = newest_first(files, options_.directory, [](const std::string& problem) {
      internal::log(LogLevel::kWarning, "a damaged checkpoint is passed over: " + problem);
    });
    return !folders.empty();
  });
  if (!has_any) return std::nullopt;
  return CheckpointAccess::restore_first(checkpoint_, folders, options, [&] {
    return newest_first(files, options_.directory, [](const std::string&) {});
  });
}

}  // namespace lockstep
