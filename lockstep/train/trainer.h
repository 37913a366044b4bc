// Trains, evaluates and predicts: the loop around Strategy::run that most programs would write, with callbacks.
#pragma once

#include <ATen/core/TensorBody.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/data/distributed_dataset.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/train/fit_options.h"
#include "lockstep/train/history.h"
#include "lockstep/train/trainer_options.h"
#include "lockstep/variable/module/summary.h"
#include "lockstep/variable/worker_values.h"

namespace lockstep {

namespace internal::inline train {
class Fit;
struct TrainerSetup;

/// What a Trainer needs of a Replicated, whatever its modules are.
struct TrainedModel {
  std::function<at::Tensor(const ReplicaContext&, const Batch&)> forward;  // empty: the program gave none
  std::vector<Variable> variables;
  std::function<std::string()> summary;
  std::function<at::Tensor(WorkerValues&, const Batch&)> forward_on_worker = {};  // as `forward`, in a scheduled step
};

/// What a Trainer needs of its options, whatever its modules are.
struct TrainerSetup {
  std::optional<TrainedModel> model = std::nullopt;
  std::optional<Optimizer> optimizer = std::nullopt;
  std::function<at::Tensor(const at::Tensor&, const Batch&)> loss = {};
  std::function<at::Tensor(ReplicaContext&, const Batch&)> step = {};
  std::vector<MetricSpec> metrics = {};
  std::optional<double> clip_global_norm = std::nullopt;
  int64_t accumulate = 1;
  Precision precision = Precision::kFloat32;
};

template <class M>
TrainedModel trained_model(const Replicated<M>& model, ForwardOf<M> forward) {
  TrainedModel trained{{}, model.variables(), [model] { return summary(model); }, {}};
  using Bound = typename Replicated<M>::Bound;
  constexpr bool kHasForward = requires(Bound & module, const Batch& batch) {
    { module->forward(batch.input) } -> std::convertible_to<at::Tensor>;
  };
  if (forward) {
    trained.forward_on_worker = [model, forward](WorkerValues& ctx, const Batch& batch) {
      return forward(model(ctx), batch);
    };
    trained.forward = [model, forward = std::move(forward)](const ReplicaContext& ctx, const Batch& batch) {
      return forward(model(ctx), batch);
    };
  } else if constexpr (kHasForward) {
    trained.forward = [model](const ReplicaContext& ctx, const Batch& batch) -> at::Tensor {
      return model(ctx)->forward(batch.input);
    };
    trained.forward_on_worker = [model](WorkerValues& ctx, const Batch& batch) -> at::Tensor {
      return model(ctx)->forward(batch.input);
    };
  }
  return trained;
}

/// Moves everything but `forward` out of the options.
template <class Options>
TrainerSetup setup_of(std::optional<TrainedModel> model, std::optional<Optimizer> optimizer, Options& options) {
  return {std::move(model),           std::move(optimizer),     std::move(options.loss), std::move(options.step),
          std::move(options.metrics), options.clip_global_norm, options.accumulate,      options.precision};
}
}  // namespace internal::train

/// How far a fit is.
struct FitStatus {
  int64_t epoch = 0;             // the one under way, or that was ended last
  int64_t epochs = -1;           // FitOptions::epochs; -1: the steps decide
  int64_t step = 0;              // steps of the fit that are done, those before a resume included
  int64_t steps = -1;            // how many there will be at most; -1: not known
  int64_t epoch_step = 0;        // steps of this epoch that are done
  int64_t steps_per_epoch = -1;  // -1: not known, of a stream
  int64_t samples = 0;           // that the fit has trained on, those before a resume included
  double seconds = 0;            // since fit() was called
  double input_seconds = 0;      // of these, waiting for batches
  double validation_seconds = 0;
  double gradient_norm = 0;  // of the last step: StepInfo::global_norm; 0 with a step of the program's own, and over
                             // parameter servers
  bool is_resumed = false;
  bool is_dry_run = false;
  /// Of some steps, where a callback wants to know what their time went into (Trainer::measure_parts()): what the lanes
  /// of this worker did, in seconds of a lane.
  struct Parts {
    double seconds = 0;        // of the measured steps, without waiting for batches
    double compute = 0;        // the model's: forward, backward
    double update = 0;         // sums over replicas, and new weights
    double communication = 0;  // exchanges with other workers
    double waiting = 0;        // for other lanes and workers
  } parts = {};
  double callback_seconds = 0;  // of `seconds`, in callbacks
};

/// Trains a replicated model: fit() makes the steps that this loop makes, with the same bits:
///
///     for (const auto& batch : data.epoch(epoch)) {
///       strategy.run(batch, [&](lockstep::ReplicaContext& ctx, const lockstep::Batch& b) {
///         ctx.scale_loss(loss(model(ctx)->forward(b.input), b)).backward();
///         optimizer.step(ctx, {.clip_global_norm = ...});
///       });
///     }
///
/// Over a ParameterServerStrategy it schedules a step for each batch, and calls coordinate() by itself: see
/// docs/trainer.md.
///
/// Its members are called outside of steps, by all workers alike, on one thread. Logs are sums over all replicas and
/// workers, in float64 and weighted by samples, so that every worker has the same numbers and decides the same. Neither
/// copied nor moved. The strategy must outlive it.
class Trainer {
 public:
  /// Options in braces, where `.forward` may have parameters of the type auto. A UsageError (LS-OPTION) for options
  /// that do not fit together: no way to a loss, an `accumulate` below 1, two metrics of one name.
  template <class M>
  Trainer(Strategy& strategy, const Replicated<M>& model, const Optimizer& optimizer, BasicTrainerOptions<M> options)
      : Trainer(internal::setup_of(internal::trained_model(model, std::move(options.forward)), optimizer, options),
                strategy) {}
  /// Options that have a name. A `.forward` names the type of its module.
  template <class M, std::same_as<TrainerOptions> Options>
  Trainer(Strategy& strategy, const Replicated<M>& model, const Optimizer& optimizer, Options options)
      : Trainer(
            internal::setup_of(internal::trained_model(
                                   model, internal::ForwardOf<M>(internal::UntypedForward(std::move(options.forward)))),
                               optimizer, options),
            strategy) {}
  /// Without a model and an optimizer, which `.step` has by itself. Such a trainer does not evaluate.
  Trainer(Strategy& strategy, TrainerOptions options)
      : Trainer(internal::setup_of(std::nullopt, std::nullopt, options), strategy) {}
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains, and gives the logs of all epochs. Where a step or a callback throws, all (other) callbacks get
  /// Callback::on_fit_fail, and the error is thrown on the worker that it came from, and a PeerError with its text on
  /// the others; the model is as after the last whole step. A UsageError for options that do not fit, and a DataError
  /// (LS-NO-SAMPLES) where an epoch has no step.
  History fit(const DistributedDataset& data, FitOptions options = {});
  /// The loss and the metrics over a data set, each sample once, without "val_": of its epoch 0, whatever place it has,
  /// which stays as it is. Over no samples all are 0. A UsageError (LS-STREAM) for a stream known to be endless.
  Logs evaluate(const DistributedDataset& data);
  /// The model's outputs, [samples, ...], on every worker, in the order of the samples: by Batch::ids, and without rows
  /// of padding. An undefined tensor where there are no samples. A UsageError (LS-OUTPUT-ROWS) where an output does not
  /// have a row for each of its part's; otherwise as evaluate().
  at::Tensor predict(const DistributedDataset& data);
  /// The model's layers and parameters, as lockstep::summary() has them.
  std::string summary() const;

  // For callbacks, and for steps of a fit.

  /// Ends the fit after the step that is under way, or before the next epoch: validation, on_epoch_end and on_fit_end
  /// still come. The first `why` counts. In a callback.
  void stop(const std::string& why);
  /// Why the fit ends, or has ended before its time; empty where it has not.
  const std::string& stopped() const;
  /// Adds a number to the logs of this epoch, which later callbacks and History see. In a callback, from
  /// on_evaluate_end on; before that the number waits for them.
  void log(const std::string& name, double value);
  const FitStatus& status() const;
  /// Of the fit under way, or the last one; it has an epoch after on_epoch_end.
  const History& history() const;
  /// Of the fit under way.
  const FitOptions& fit_options() const;
  /// Names that on_epoch_end's logs will have.
  const std::vector<std::string>& log_names() const;
  /// Everything that the fit under way is: the run's state, the place in the data, the history, and the callbacks'
  /// state. In a callback.
  Checkpoint checkpoint() const;
  /// The batches of the step that has just been done, several where the trainer accumulates: the parts of this worker's
  /// replicas; over parameter servers, the parts of all workers. In on_step_end, for as long as that runs.
  std::span<const PerReplica<Batch>> batches() const;
  /// Asks that the next step's gradients are kept. In a callback, by all workers alike. It costs that step a copy of
  /// each replica's gradients, and memory for all of them at once.
  void keep_gradients();
  /// The gradients of the step that has just been done, where that was asked for: by the variables' names, summed over
  /// all replicas, as the optimizer had them before it clipped. Without variables of more than 2^26 elements, and none
  /// with a step of the program's own, or over parameter servers. In on_step_end.
  const std::vector<std::pair<std::string, at::Tensor>>& gradients() const;
  /// From now on each sixteenth step is measured, for FitStatus::parts: some tens of nanoseconds for each thing that a
  /// lane does. Over parameter servers it measures nothing. In a callback, on any worker.
  void measure_parts();
  Strategy& strategy() const { return strategy_; }
  /// A UsageError where it was made without one.
  const Optimizer& optimizer() const;
  bool has_optimizer() const;
  /// The model's, or none.
  const std::vector<Variable>& variables() const;
  const std::vector<MetricSpec>& metrics() const;

 private:
  friend class internal::Fit;
  Trainer(internal::TrainerSetup setup, Strategy& strategy);
  internal::Fit& fit_under_way(const char* call) const;

  struct State;
  Strategy& strategy_;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
