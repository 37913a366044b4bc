// A metric of a Trainer: how one batch is counted, and how the counts become numbers.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "lockstep/data/batch.h"

namespace lockstep {

/// What a metric has counted, of one batch or of everything.
struct MetricCounts {
  at::Tensor sums = {};  // float64 [MetricSpec::sums]; the sums of two parts are added
  at::Tensor rows = {};  // float64 [n, MetricSpec::columns]; the rows of two parts are put together, in any order
};

/// One metric of TrainerOptions::metrics: two functions and what they exchange. The Trainer calls `update` for each
/// part of a batch, adds up what it gives in float64, over batches, replicas and workers, and calls `results` for the
/// whole. So a metric is right over parts of different sizes, and the number of workers does not change it.
struct MetricSpec {
  std::string name = {};  // in logs; validation's have "val_" before it
  int64_t sums = 0;       // how many sums `update` gives
  int64_t columns = 0;    // how many columns its rows have; 0: it keeps none
  /// Counts one replica's part, in a step, on the replica's thread, without gradients. `output` is the model's output.
  /// Rows of padding do not count (Batch::samples()); a part may be empty. It neither meets other replicas nor keeps
  /// anything between calls.
  std::function<MetricCounts(const at::Tensor& output, const Batch& batch)> update = {};
  /// The numbers by name, the same function on every worker. Most metrics give one, under their own name.
  std::function<std::map<std::string, double>(const MetricCounts& whole)> results = {};
  bool higher_is_better = true;  // what Mode::kAuto takes for an improvement
};

}  // namespace lockstep
