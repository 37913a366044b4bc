// One fit: the loop over epochs and steps, and everything that a checkpoint of it has beside the run's own state.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/train/hooks.h"
#include "lockstep/train/step/chief_clock.h"
#include "lockstep/train/step/rounded_updates.h"
#include "lockstep/train/step/waiting_counts.h"
#include "lockstep/train/totals.h"
#include "lockstep/train/trainer.h"
#include "lockstep/train/trainer_state.h"

namespace lockstep::internal::inline train {

class Fit {
 public:
  static constexpr const char* kTrackedData = "fit data";  // in checkpoints: every fit has it, and no loop by hand

  /// A UsageError for options that do not fit.
  Fit(Trainer& trainer, Trainer::State& state, const DistributedDataset& data, FitOptions options);
  Fit(const Fit&) = delete;
  Fit& operator=(const Fit&) = delete;

  /// The fit under way. A UsageError where there is none.
  static Fit& of(const Trainer& trainer);

  History run();

  void stop(const std::string& why);
  void log(const std::string& name, double value);
  const FitOptions& options() const { return options_; }
  /// A call of all workers: it brings together what steps have counted. Made anew for each save.
  Checkpoint checkpoint();
  /// What checkpoint() does first, for a Checkpoint that was made before.
  void prepare_save() {
    require_no_step_under_way();
    bring_together();
  }

  /// Whether it is time to save, by the chief's decision: see LastCallback::is_due().
  bool is_save_due() const { return save_is_due_; }
  /// Whether no further step comes after this one, or this epoch.
  bool is_over() const;
  /// Whether this epoch was left before its end, so that a resume goes on in it.
  bool has_left_epoch() const { return has_left_epoch_; }
  /// A checkpoint was restored.
  void note_resumed();
  std::span<const PerReplica<Batch>> batches() const { return batches_; }
  void keep_gradients();
  /// Strategy::step(), as of now.
  int64_t strategy_step() const { return state_.runner->steps(); }
  const std::vector<std::pair<std::string, at::Tensor>>& gradients() const { return gradients_; }
  void measure_parts() { measures_parts_ = true; }
  /// The name of the callback that is being called, unlike that of all others.
  const std::string& running_name() const { return running_->running_name(); }
  /// What Mode::kAuto means for a name of the logs. A UsageError for one of which it is not known.
  bool is_higher_better(const std::string& name) const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Hook : uint8_t { kFitBegin, kFitResume, kEpochBegin, kStepEnd, kEvaluateEnd, kEpochEnd, kFitEnd };
  /// Which steps' numbers are wanted as soon as the step is done: none; those after which the chief's clock is asked,
  /// for a bar that shows them; or all that FitOptions::log_every names.
  enum class LogNeed : uint8_t { kNone, kNowAndThen, kByLogEvery };
  /// What is saved with a checkpoint, beside the history and the callbacks' state.
  struct Place {
    int64_t epoch = 0;           // the one under way, or, with epoch_step 0, the next one
    int64_t epoch_step = 0;      // its steps that are done
    int64_t step = 0;            // all steps of the fit
    int64_t samples = 0;         // of them
    int64_t validated_step = 0;  // after which FitOptions::validate_every_steps had its last validation
    std::string stopped = {};    // why the fit has ended at an epoch's end
    Totals epoch_totals = {};
    Logs extra = {};      // for the logs of this epoch: validation's, and what callbacks have added
    Logs last_logs = {};  // of the last epoch's end, without what callbacks have added then
  };

  void require_options() const;
  /// A call of all workers.
  void require_equal_options() const;
  void find_log_names();
  void begin_data();
  void leave_data();
  void check_validation();
  void epoch();
  /// False where the data came to their end, true where the fit is over before.
  bool steps_of_epoch(bool goes_on);
  /// Hands out a step, with what callbacks have asked to see of it.
  void begin_step(std::vector<PerReplica<Batch>> batches);
  /// Whether steps that are under way have to end before another one is handed out.
  bool must_end_steps() const;
  /// The next step that counts.
  void end_step();
  void require_no_step_under_way() const;
  void find_log_need();
  bool is_log_due() const;
  /// Whether the chief's clock decides something after this step.
  bool is_clock_due() const { return uses_clock_ && clock_.is_due(place_.step); }
  /// What this worker would say as the chief.
  ChiefSays says_by_clock(bool may_save);
  bool is_save_due_by_steps();
  void validate_after_step();
  void validate();
  void end_epoch();
  /// Gives the totals of the last step, where it is among those that were brought together.
  std::optional<Totals> bring_together();
  void call(Hook hook, const Logs& logs);
  void note_end_of_step();
  bool wants_validation(int64_t epoch) const;
  std::string rates_text() const;
  std::string saved() const;
  void load(const std::string& text);

  Trainer& trainer_;
  Trainer::State& state_;
  Strategy& strategy_;
  const DistributedDataset data_;
  const FitOptions options_;
  const Clock::time_point begin_ = Clock::now();
  const MetricList no_metrics_;
  const MetricList& train_metrics_;  // none with a step of the program's own
  std::unique_ptr<Hooks> hooks_;     // all callbacks but the next ones
  std::unique_ptr<Hooks> last_;      // those that save: they come behind all others
  Hooks* running_ = nullptr;
  PartWork train_;
  Place place_;
  Logs epoch_logs_;
  std::span<const PerReplica<Batch>> batches_;                 // of the step that was made last, in its on_step_end
  std::vector<std::pair<std::string, at::Tensor>> gradients_;  // of the step that was made last, if they were kept
  WaitingCounts waiting_;                                      // of steps whose numbers were not brought together yet
  std::unique_ptr<RoundedUpdates> rounded_;                    // on the chief, which says it for all
  LogNeed log_need_ = LogNeed::kByLogEvery;
  bool is_watched_ = false;  // it has callbacks, which may look at its times
  bool uses_clock_ = false;
  ChiefClock clock_;
  bool keeps_gradients_ = false;  // of the next step
  bool measures_parts_ = false;
  bool is_ending_epoch_ = false;  // on_epoch_end is being called
  bool must_end_epoch_ = false;   // it was resumed in an epoch, which ends even if no step is left
  bool has_left_epoch_ = false;
  bool is_time_over_ = false;
  bool save_is_due_ = false;
  bool save_waits_ = false;  // for steps that are under way
  bool stopped_by_callback_ = false;
};

}  // namespace lockstep::internal::train
