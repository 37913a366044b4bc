// What precision, recall and F1 are computed of: for each class, how often it was the target, predicted, and both.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/data/batch.h"
#include "lockstep/train/metric_spec.h"
#include "lockstep/train/metrics/metric_part.h"
#include "lockstep/train/trainer_metrics.h"

namespace lockstep::internal::inline train {

/// The counts of one class, in weights.
struct ClassCounts {
  double actual = 0;     // it is the target
  double predicted = 0;  // it was predicted
  double right = 0;      // both
};

/// How a table of classes is kept in MetricCounts: in sums where the number of classes is known beforehand, otherwise
/// as a row for each class that came.
class ClassTable {
 public:
  /// 0 classes: each batch says how many there are.
  explicit ClassTable(int64_t classes) : classes_(classes) {}

  int64_t sums() const { return classes_ == 0 ? 0 : classes_ * kColumns + 1; }
  int64_t columns() const { return classes_ == 0 ? kColumns + 3 : 0; }
  /// Counts a part. Each output with a target of its own is a class, but for one output for each sample.
  MetricCounts count(const MetricArguments& arguments, const at::Tensor& output, const Batch& batch) const;

  struct Whole {
    std::vector<ClassCounts> classes = {};  // from class 0; no and yes, where each sample has one output
    bool own_targets = false;               // each of several outputs has a target of its own
  };
  Whole whole(const MetricCounts& counts, metrics::Outputs outputs) const;

 private:
  /// Of a class: actual; predicted and right, if outputs are probabilities; both if they are logits; how many of its
  /// outputs are no probabilities; of outputs that have targets of their own, how many there are. Sums end with how
  /// many values had targets of their own; rows begin with the class, the number of classes, and 1 where they have such
  /// targets.
  static constexpr int64_t kColumns = 7;

  int64_t classes_;
};

}  // namespace lockstep::internal::train
