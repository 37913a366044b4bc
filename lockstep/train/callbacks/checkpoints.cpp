// checkpoints() and best_checkpoint(): save everything that a fit is, and resume it.
#include <fmt/format.h>

#include <charconv>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "lockstep/checkpoint/checkpoint_manager.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/callbacks/last_callback.h"
#include "lockstep/train/callbacks/monitor.h"
#include "lockstep/train/callbacks/save_schedule.h"
#include "lockstep/train/fit.h"

namespace lockstep {

namespace {

namespace fs = std::filesystem;
using callbacks::FailedSave;
using internal::Fit;
using internal::SaveSchedule;

constexpr const char* kBest = "best";
constexpr const char* kLast = "last";

/// The step that `from` means; nothing where it is "last" or "best".
std::optional<int64_t> step_of(const std::variant<std::string, int64_t>& from) {
  if (const auto* const step = std::get_if<int64_t>(&from)) return *step;
  const std::string& text = std::get<std::string>(from);
  if (text == kBest || text == kLast) return std::nullopt;
  int64_t step = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, step);
  if (error == std::errc() && stop == end && step >= 0) return step;
  throw UsageError("LS-OPTION", fmt::format("checkpoints was given .resume_from = \"{}\"", text),
                   "give \"last\", \"best\", or the step of a checkpoint");
}

/// Restores by `restore`. Where the checkpoint does not fit, the remedy is one that a fit has: it takes no
/// RestoreOptions.
template <class Restore>
auto restored_in_fit(const Restore& restore) {
  try {
    return restore();
  } catch (const UsageError& error) {
    if (error.code() != "LS-CHECKPOINT-MISFIT") throw;
    const std::string text = error.what();
    const std::string fact = text.substr(0, text.find(" [LS-CHECKPOINT-MISFIT]"));
    const bool is_of_early_stopping = fact.find("early_stopping") != std::string::npos;
    const std::size_t missing = fact.find("missing in it");
    const bool is_of_no_fit =
        missing != std::string::npos && fact.find(Fit::kTrackedData, missing) != std::string::npos;
    throw UsageError(
        "LS-CHECKPOINT-MISFIT", fact,
        is_of_no_fit
            ? "it was saved by a loop without a Trainer, as `lockstep train` was once: end that run with the program "
              "that began it; or give checkpoints another .directory, and before the fit take over what fits, by "
              "Checkpoint::restore with .allow_missing and .allow_unexpected of RestoreOptions"
        : is_of_early_stopping
            ? "let this fit have the callback early_stopping with .restore_best where the fit that saved it had it, "
              "and not where it had not; or give checkpoints another .directory"
            : "make what the checkpoint was made of, with the callbacks of the fit that saved it, or give checkpoints "
              "another .directory");
  }
}

class Checkpoints final : public internal::LastCallback {
 public:
  explicit Checkpoints(callbacks::CheckpointsOptions options)
      : options_(std::move(options)), resume_step_(step_of(options_.resume_from)) {}

  std::string name() const override { return "checkpoints"; }
  bool comes_behind() const override { return true; }

  void on_fit_begin(Trainer& trainer, const Logs& /*logs*/) override {
    manager_ = std::make_unique<CheckpointManager>(
        trainer.checkpoint(), CheckpointManagerOptions{.directory = options_.directory, .keep = options_.keep});
    manager_->claim();
    resume(trainer);
    schedule_.emplace(options_.every_steps, options_.every_seconds, SaveSchedule::Clock::now());
  }

  std::string agreed_options() const override { return fmt::format(" with .every_steps = {}", options_.every_steps); }
  bool is_due_at(int64_t step) override { return schedule_->is_due_at(step); }
  bool is_due_by_clock(const Trainer& trainer) override {
    return schedule_->is_due_by_clock(Fit::of(trainer).strategy_step(), manager_->last_save_seconds(),
                                      SaveSchedule::Clock::now());
  }
  void on_step_end(Trainer& trainer, const Logs& /*logs*/) override { save(trainer); }
  void on_epoch_end(Trainer& trainer, const Logs& /*logs*/) override {
    // After an epoch that was left before its end, the place to go on from is that of its last step.
    const Fit& fit = Fit::of(trainer);
    if (!fit.has_left_epoch() && (fit.is_save_due() || fit.is_over())) save(trainer);
  }
  void on_fit_end(Trainer& trainer, const Logs& /*logs*/) override {
    attempt(trainer, FailedSave::kLastOne, [&] {
      if (failed_) save_now(trainer);  // once more, and now it is an error
      manager_->wait();
    });
    manager_.reset();
  }
  void on_fit_fail(const std::exception& /*error*/) override {
    manager_.reset();  // waits for a save that is under way
  }

 private:
  void resume(Trainer& trainer) {
    std::optional<RestoreInfo> restored;
    fs::path from = options_.directory;
    if (resume_step_) {
      from /= fmt::format("step-{:010}", *resume_step_);
      restored = restored_in_fit([&] { return trainer.checkpoint().restore(from); });
    } else if (std::get<std::string>(options_.resume_from) == kBest) {
      from /= kBest;
      restored = restored_in_fit([&] { return trainer.checkpoint().restore(from); });
    } else {
      restored = restored_in_fit([&] { return manager_->restore_latest(); });
    }
    if (!restored) return;
    Fit& fit = Fit::of(trainer);
    fit.note_resumed();
    if (!trainer.strategy().is_chief()) return;
    const std::string why = trainer.stopped().empty() ? "" : fmt::format(" ({})", trainer.stopped());
    internal::log(
        LogLevel::kInfo,
        fit.is_over()
            ? fmt::format("checkpoints: the fit in {} has ended with step {}{}, and makes no further "
                          "one; for a new fit give another folder",
                          from.string(), restored->step, why)
            : fmt::format("checkpoints: the fit goes on after step {}, from {}", restored->step, from.string()));
  }

  void save_now(Trainer& trainer) {
    Fit::of(trainer).prepare_save();
    manager_->save();
  }

  /// An error of the disk is told, and training goes on: the next save may do better.
  void save(Trainer& trainer) {
    failed_ = false;
    const bool is_end = Fit::of(trainer).is_over();
    attempt(trainer, is_end ? FailedSave::kLastOneFollows : FailedSave::kTrainingGoesOn, [&] { save_now(trainer); });
    schedule_->saved(Fit::of(trainer).strategy_step(), manager_->last_save_seconds(), SaveSchedule::Clock::now());
  }

  /// Carries out `save`. What the disk of this or another worker refuses is told; for other errors it is as if this
  /// were not here.
  void attempt(const Trainer& trainer, FailedSave which, const std::function<void()>& save) {
    try {
      save();
    } catch (const Error& error) {
      const bool is_of_disk = dynamic_cast<const DataError*>(&error) != nullptr;
      if (!is_of_disk && error.code() != "LS-PEER-FAILED") throw;  // as which it comes to the other workers
      failed_ = true;
      if (options_.on_failed_save) return options_.on_failed_save(error, which);
      if (which == FailedSave::kLastOne) throw;
      if (!trainer.strategy().is_chief()) return;
      internal::log(LogLevel::kWarning,
                    fmt::format("checkpoints: a save failed, and {}: {}",
                                which == FailedSave::kLastOneFollows ? "the last one follows" : "training goes on",
                                error.what()));
    }
  }

  const callbacks::CheckpointsOptions options_;
  const std::optional<int64_t> resume_step_;
  std::unique_ptr<CheckpointManager> manager_;  // in a fit
  std::optional<SaveSchedule> schedule_;
  bool failed_ = false;  // the last save
};

class BestCheckpoint final : public internal::LastCallback {
 public:
  explicit BestCheckpoint(callbacks::BestCheckpointOptions options)
      : options_(std::move(options)), monitor_(options_.monitor, options_.mode, options_.min_delta) {}

  std::string name() const override { return "best_checkpoint"; }
  std::vector<std::string> monitored() const override { return {options_.monitor}; }

  void on_fit_begin(Trainer& trainer, const Logs& /*logs*/) override { monitor_.begin(trainer); }
  void on_evaluate_end(Trainer& trainer, const Logs& logs) override { look(trainer, logs, true); }
  void on_epoch_end(Trainer& trainer, const Logs& logs) override { look(trainer, logs, false); }

  nlohmann::json state() const override { return {{"best", monitor_.state()}}; }
  void load(const nlohmann::json& state) override { monitor_.load(state.at("best")); }

 private:
  void look(Trainer& trainer, const Logs& logs, bool is_validation) {
    const auto value = monitor_.value_in(trainer, logs, is_validation);
    if (!value || !monitor_.is_new_best(*value)) return;
    trainer.checkpoint().save(options_.directory / kBest);
  }

  const callbacks::BestCheckpointOptions options_;
  internal::Monitor monitor_;
};

}  // namespace

std::shared_ptr<Callback> callbacks::checkpoints(CheckpointsOptions options) {
  if (options.directory.empty()) {
    throw UsageError("LS-OPTION", "checkpoints was given no .directory", "give the folder that the fit saves into");
  }
  if (options.every_steps < 0 || options.every_seconds < 0) {
    throw UsageError("LS-OPTION",
                     fmt::format("checkpoints was given .every_steps = {} and .every_seconds = {}", options.every_steps,
                                 options.every_seconds),
                     "give numbers above 0, or leave them out");
  }
  return std::make_shared<Checkpoints>(std::move(options));
}

std::shared_ptr<Callback> callbacks::best_checkpoint(BestCheckpointOptions options) {
  if (options.directory.empty()) {
    throw UsageError("LS-OPTION", "best_checkpoint was given no .directory", "give the folder that has the best");
  }
  return std::make_shared<BestCheckpoint>(std::move(options));
}

}  // namespace lockstep
