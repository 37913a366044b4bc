// What steps and evaluations have counted: the loss and the metrics, summed up over batches, replicas and workers.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lockstep/core/per_replica.h"
#include "lockstep/data/batch.h"
#include "lockstep/strategy/strategy.h"
#include "lockstep/train/history.h"
#include "lockstep/train/metric_spec.h"

namespace lockstep::internal::inline train {

/// What one replica has counted in one step.
struct PartCounts {
  at::Tensor loss = {};               // without dimensions; of a step it has its weight
  at::Tensor sums = {};               // float64, of all metrics, one behind the other; undefined without metrics
  std::vector<at::Tensor> rows = {};  // of each metric; undefined where it has none
  double gradient_norm = 0;
  at::Tensor output = {};  // of a prediction; undefined for a part without samples
};

/// The numbers of some steps, or of an evaluation, over all replicas: the same on every worker.
struct Totals {
  double loss = 0;                    // each mean loss times its samples
  int64_t samples = 0;                // that the losses are of
  std::vector<double> sums = {};      // of all metrics
  std::vector<at::Tensor> rows = {};  // of each metric; undefined where there are none

  void add(const Totals& other);
  nlohmann::json to_json() const;
  static Totals from_json(const nlohmann::json& json);
};

class WaitingCounts;

/// The metrics of a trainer: how parts are counted, and what becomes of the counts.
class MetricList {
 public:
  /// A UsageError for a metric without a name or a function, and for two of one name.
  explicit MetricList(std::vector<MetricSpec> specs);

  const std::vector<MetricSpec>& specs() const { return specs_; }
  /// Adds what one replica's output gives. In a step.
  void count(PartCounts& counts, const at::Tensor& output, const Batch& batch) const;
  /// Makes both ready for add_part().
  PartCounts none() const;
  /// Adds what a replica has counted of another batch.
  static void add_part(PartCounts& sum, const PartCounts& part);

  /// The totals of several steps, each with the losses of its replicas, whose sum is the loss over `samples`. A call of
  /// all workers: a step's numbers have the same bits, however many are brought together at once.
  std::vector<Totals> bring_together(const Strategy& strategy, const WaitingCounts& steps) const;
  std::vector<Totals> bring_together(const Strategy& strategy, const std::vector<PerReplica<PartCounts>>& steps,
                                     const std::vector<int64_t>& samples) const;
  /// "loss" and what the metrics give. `has_loss`: whether there was one.
  Logs logs_of(const Totals& totals, bool has_loss = true) const;
  /// The names that logs_of gives.
  std::vector<std::string> names(bool has_loss = true) const;

 private:
  std::vector<at::Tensor> rows_by_step(const Strategy& strategy, const WaitingCounts& steps, std::size_t metric) const;

  const std::vector<MetricSpec> specs_;
  int64_t num_sums_ = 0;
};

}  // namespace lockstep::internal::train
