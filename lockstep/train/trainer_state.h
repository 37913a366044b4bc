// What is behind a Trainer, and how it makes one step or looks at one data set.
#pragma once

#include <c10/util/Exception.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/train/step_runner.h"
#include "lockstep/train/totals.h"
#include "lockstep/train/trainer.h"

namespace lockstep {

struct Trainer::State {
  internal::TrainerSetup setup;
  internal::MetricList metrics;
  History history = {};
  FitStatus status = {};
  std::string stopped = {};
  std::vector<std::string> log_names = {};
  internal::Fit* fit = nullptr;  // the one under way
  std::unique_ptr<internal::StepRunner> runner = nullptr;
};

namespace internal::inline train {

/// What `fn` gives. LibTorch's errors, which do not know whose function they come from, say it.
template <class Fn>
auto named(const char* function, const Fn& fn) {
  try {
    return fn();
  } catch (c10::Error& error) {
    error.add_context(std::string("in ") + function);
    throw;
  }
}

/// What TrainerOptions::loss gives of a part. A UsageError where it is not one number.
at::Tensor loss_of(const TrainerSetup& setup, const at::Tensor& output, const Batch& part);

/// The step function of a fit: forward, loss, backward and update of one part. What it is made of must outlive it.
PartFunction train_function(const TrainerSetup& setup, const MetricList& metrics, bool checks_finite);

/// What an evaluation makes of a part: its loss by its samples, and its metrics. The same.
PartFunction evaluate_function(const TrainerSetup& setup, const MetricList& metrics);
/// What a prediction makes of a part: the model's output. The same.
PartFunction predict_function(const TrainerSetup& setup);

/// How a data set is looked at.
struct Look {
  bool first_batch_only = false;
};
Totals evaluate(Strategy& strategy, StepRunner& runner, const TrainerSetup& setup, const MetricList& metrics,
                const DistributedDataset& data, const Look& look);
at::Tensor predict(Strategy& strategy, StepRunner& runner, const TrainerSetup& setup, const MetricList& metrics,
                   const DistributedDataset& data);
/// A UsageError where there is no model, or no way to its output.
void require_forward(const TrainerSetup& setup, const char* call);
/// The same, and one where there is neither a loss nor a metric.
void require_numbers(const TrainerSetup& setup, const MetricList& metrics, const char* call);
/// A UsageError for a stream that is known to have no end.
void require_end(const DistributedDataset& data, const char* call);

}  // namespace internal::train

}  // namespace lockstep
