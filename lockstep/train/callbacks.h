// The callbacks that come with the library, for FitOptions::callbacks.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "lockstep/train/callback.h"

namespace lockstep {

/// What an improvement of a monitored number is.
enum class Mode {
  kAuto,  // by the number: lower for the loss, otherwise what the metric says (MetricSpec::higher_is_better)
  kMin,   // lower is better
  kMax,   // higher is better
};

namespace callbacks {

struct EarlyStoppingOptions {
  std::string monitor = "val_loss";  // a name of on_epoch_end's logs
  Mode mode = Mode::kAuto;
  /// Stops after so many epochs with the number that have not improved it; 0 is as 1. The first epoch of all never
  /// stops.
  int64_t patience = 0;
  double min_delta = 0;  // an improvement is larger than that; the sign does not matter
  /// At the end of the fit, however it ends but for an exception, the model gets the values of the best epoch:
  /// parameters and buffers, not the optimizer's slots. They are kept as variables, so that checkpoints have them.
  bool restore_best = false;
  /// An improvement that is not better than this is remembered, and does not count against `patience`.
  std::optional<double> baseline = std::nullopt;
  int64_t start_from_epoch = 0;               // earlier epochs are not looked at
  std::optional<double> goal = std::nullopt;  // stops when the number is as good as this
};
/// Stops the fit where a number has not improved for some epochs. It counts as Keras' EarlyStopping does, but NaN is
/// never an improvement and never the best. Where the fit validates by steps (FitOptions::validate_every_steps), a
/// number of the validation is looked at after each, and counted so.
std::shared_ptr<Callback> early_stopping(EarlyStoppingOptions options = {});

struct ReduceOnPlateauOptions {
  std::string monitor = "val_loss";
  double factor = 0.1;    // of the rate; between 0 and 1
  int64_t patience = 10;  // epochs without an improvement
  double min_rate = 0;    // no rate becomes less
  int64_t cooldown = 0;   // epochs after a cut that are not counted
  Mode mode = Mode::kAuto;
  double min_delta = 1e-4;
};
/// Multiplies the learning rates of all groups of the trainer's optimizer where a number has not improved for some
/// epochs. It counts as Keras' ReduceLROnPlateau does, but NaN is never an improvement. It adds "learning_rate", that
/// of the first group in the epoch that has ended, to the logs. It takes the place of a schedule (set_schedule).
std::shared_ptr<Callback> reduce_on_plateau(ReduceOnPlateauOptions options = {});

/// When a save has failed, and what comes of it.
enum class FailedSave {
  kTrainingGoesOn,  // in the fit: the next save tries again
  kLastOneFollows,  // an earlier save, as is known only now that the fit ends: the last one comes after it
  kLastOne,         // the one at the fit's end
};

struct CheckpointsOptions {
  std::filesystem::path directory = {};
  int64_t every_steps = 0;   // saves after each so many-th step of the run
  double every_seconds = 0;  // or when so much time is over since the last save, by the chief's clock
  int64_t keep = 3;          // so many of the newest stay
  /// Where the fit goes on from: "last", the newest checkpoint, or from the beginning where there is none; "best", what
  /// best_checkpoint() has saved in the same directory; or the step of one.
  std::variant<std::string, int64_t> resume_from = "last";
  /// Called on all workers where a save has failed, in place of the warning, and of the error that the last one's
  /// failure is: on the worker whose disk has refused with the DataError, on the others with the PeerError that quotes
  /// it.
  std::function<void(const std::exception& error, FailedSave which)> on_failed_save = {};
};
/// Saves everything that the fit is, and resumes it: the next fit with the same directory goes on at the very next
/// step, with the bits, the history and the callbacks' state of the fit that never stopped, on any number of workers.
/// Without `every_steps` and `every_seconds` it saves as often as one hundredth of the time allows. It saves also where
/// the fit ends. Its hooks run behind those of all others. A fit that had ended by an epoch's end stays ended.
///
/// A save that fails while the fit goes on is a warning, and one at its end an error, unless `.on_failed_save` takes
/// it.
std::shared_ptr<Callback> checkpoints(CheckpointsOptions options);

struct BestCheckpointOptions {
  std::filesystem::path directory = {};
  std::string monitor = "val_loss";
  Mode mode = Mode::kAuto;
  double min_delta = 0;
};
/// Saves a checkpoint of the fit as `<directory>/best` after each epoch that improves a number. NaN does not.
std::shared_ptr<Callback> best_checkpoint(BestCheckpointOptions options);

struct CsvLogOptions {
  std::filesystem::path file = {};
  char separator = ',';
};
/// The history as a file with one line for each epoch: the epoch's number, then one column for each name of the logs,
/// sorted. What an epoch does not have is empty. The chief writes the whole file anew at each epoch's end, and a rename
/// puts it in its place, so that a resumed fit has each epoch once.
std::shared_ptr<Callback> csv_log(CsvLogOptions options);

struct JsonLogOptions {
  std::filesystem::path file = {};
};
/// The same with one JSON object on each line: `{"epoch": 0, "loss": 0.5}`. NaN and infinities are strings.
std::shared_ptr<Callback> json_log(JsonLogOptions options);

/// Each step checks its loss and its gradients, and throws a NonFiniteError that names variables, replica and step
/// where one is infinite or NaN, before anything is applied. With a step of the program's own it checks the loss that
/// this returns, after what the step has applied.
std::shared_ptr<Callback> stop_on_not_finite();

struct TraceStepsOptions {
  std::filesystem::path file = {};
  int64_t steps = 20;  // that are traced
  int64_t left_out =
      3;  // before them, where memory is taken and forms are chosen; fewer where the fit has too few steps
  /// Called on all workers where the file cannot be written, in place of the error, with the DataError of the chief or
  /// the PeerError that quotes it.
  std::function<void(const std::exception& error)> on_failed_write = {};
};
/// Writes what lanes and workers did in some of the first steps that this process makes (see lockstep::Trace). The file
/// is there when these steps, or all that the fit has, are done. A DataError (LS-FILE) where it cannot be written.
std::shared_ptr<Callback> trace(TraceStepsOptions options);

/// Calls `fn` after each step, or after each epoch, with what the hook gets. `name` is what messages say.
std::shared_ptr<Callback> each_step(std::function<void(Trainer& trainer, const Logs& logs)> fn,
                                    std::string name = "each_step");
std::shared_ptr<Callback> each_epoch(std::function<void(Trainer& trainer, const Logs& logs)> fn,
                                     std::string name = "each_epoch");

enum class ProgressStyle {
  kAuto,   // LOCKSTEP_PROGRESS=off|lines|bar in the environment; without it a bar on a terminal, lines elsewhere
  kOff,    // nothing
  kLines,  // a line now and then, and one for each epoch
  kBar,    // one line that is drawn again, and one for each epoch
};
struct ProgressOptions {
  ProgressStyle style = ProgressStyle::kAuto;
};
/// What a person wants to see meanwhile, on standard error, written by the chief: place, time left, loss, samples a
/// second. A fit has it by itself where standard error is a terminal.
std::shared_ptr<Callback> progress(ProgressOptions options = {});

}  // namespace callbacks
}  // namespace lockstep
