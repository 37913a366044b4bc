// What a Trainer's metrics count of one batch: its samples' outputs, targets and weights.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/batch.h"
#include "lockstep/strategy/metric_arguments.h"
#include "lockstep/strategy/metrics.h"
#include "lockstep/train/metric_spec.h"
#include "lockstep/train/trainer_metrics.h"

namespace lockstep::internal::inline train {

/// A part of a batch without its padding, in the host's memory and without a graph.
struct MetricPart {
  at::Tensor output = {};
  at::Tensor target = {};
  metrics::Weights weights = {};

  /// Throws a UsageError of `arguments` where the output has not the batch's rows.
  MetricPart(const MetricArguments& arguments, const at::Tensor& output, const Batch& batch);
};

/// The tensor without a dimension 1 of size 1 that the other does not have.
at::Tensor aligned(const at::Tensor& tensor, const at::Tensor& other);

/// Outputs of which each decides between yes and no about a target of its own. All members have one shape.
struct BinaryPart {
  at::Tensor scores = {};    // float64
  at::Tensor labels = {};    // float64: 1 for yes
  at::Tensor weights = {};   // float64; 0 where it does not count
  at::Tensor as_share = {};  // bool: yes, if outputs are probabilities
  at::Tensor as_logit = {};  // bool: yes, if they are logits
  at::Tensor outside = {};   // bool: it counts, and is no probability
};

/// Nothing where outputs and targets do not go together in this way. Throws the UsageError LS-TARGET where they do, and
/// a target is neither 0 nor 1.
std::optional<BinaryPart> binary_part(const MetricArguments& arguments, const MetricPart& part);

/// The sum of the weights where `which` is true, float64 without dimensions.
at::Tensor weight_of(const at::Tensor& which, const at::Tensor& weights);

/// Which of two numbers holds: as probabilities or as logits. `outside` says how many outputs were no probabilities.
inline bool are_logits(metrics::Outputs outputs, double outside) {
  return outputs == metrics::Outputs::kLogits || (outputs == metrics::Outputs::kAuto && outside > 0);
}

/// a / b, and 0 where b is 0.
inline double share(double a, double b) { return b == 0 ? 0 : a / b; }

/// The sums as numbers.
std::vector<double> numbers_of(const at::Tensor& sums);

/// The rows, sorted by their numbers, so that no result depends on the order in which they came. Rows with NaN come in
/// any order.
std::vector<std::vector<double>> sorted_rows(const at::Tensor& rows);

}  // namespace lockstep::internal::train
