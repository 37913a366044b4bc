// What is behind a Trainer, and how it makes one step or looks at one data set.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

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
  /// Where the last fit has left its data set. The next one begins its first epoch anew there.
  std::optional<lockstep::data::Cursor> left_at = std::nullopt;
  const void* left_data = nullptr;
};

namespace internal::inline train {

/// The step function of a fit, for one or several batches.
class TrainStep {
 public:
  TrainStep(Strategy& strategy, const TrainerSetup& setup, const MetricList& metrics, bool checks_finite)
      : strategy_(strategy), setup_(setup), metrics_(metrics), checks_finite_(checks_finite) {}

  /// One step; gives what each replica has counted.
  PerReplica<PartCounts> operator()(const PerReplica<Batch>& batch) const;
  PerReplica<PartCounts> operator()(const std::vector<PerReplica<Batch>>& batches) const;

 private:
  /// Forward and backward of one part; `weighed` gives the loss its weight.
  template <class Weigh>
  void forward_and_backward(const ReplicaContext& ctx, const Batch& part, PartCounts& counts,
                            const Weigh& weighed) const;
  void check_loss(const ReplicaContext& ctx, const at::Tensor& loss) const;
  void update(const ReplicaContext& ctx, PartCounts& counts) const;

  Strategy& strategy_;
  const TrainerSetup& setup_;
  const MetricList& metrics_;
  const bool checks_finite_;
};

/// How a data set is looked at.
struct Look {
  bool first_batch_only = false;
  bool is_in_fit = false;
};
Totals evaluate(Strategy& strategy, const TrainerSetup& setup, const MetricList& metrics,
                const DistributedDataset& data, const Look& look);
at::Tensor predict(Strategy& strategy, const TrainerSetup& setup, const DistributedDataset& data, const Look& look);
/// A UsageError where there is no model, or no way to its output.
void require_forward(const TrainerSetup& setup, const char* call);

}  // namespace internal::train

}  // namespace lockstep
