// Metrics of a Trainer by name: functions that give a MetricSpec for TrainerOptions::metrics.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>
#include <string>

#include "lockstep/data/batch.h"
#include "lockstep/train/metric_spec.h"

namespace lockstep {

/// How the numbers of several classes become one.
enum class Average : uint8_t {
  kAuto,      // of two classes that of class 1, otherwise as kMacro
  kMacro,     // the mean over the classes; a class that never comes counts too, as 0
  kMicro,     // all classes are counted together
  kWeighted,  // the mean over the classes, each weighted by how often it is the target
  kEach,      // none: a number for each class, "f1/0", "f1/1", ...
};

namespace metrics {

using lockstep::Average;

/// What a model's single outputs for "yes" are, of metrics that decide between yes and no.
enum class Outputs : uint8_t {
  kAuto,           // logits where any of all that was counted is outside of [0, 1], otherwise probabilities
  kProbabilities,  // yes where above 0.5
  kLogits,         // yes where above 0
};

// All metrics below count in float64, and give the same number whether they are given a set whole, in uneven parts or
// with empty parts, in any order. The number of workers changes no more than the last bits of sums that are not exact.
//
// Which values count: rows of padding do not, nor does a class number of -100 as target. A batch may weigh its samples
// by `Batch::more`, in an entry "weight" or "weights" of real numbers from 0, [size] or with the values' first
// dimensions. Then each metric is what it would be if a sample of weight w came w times; one of weight 0 does not
// count, whatever it is. Where nothing counted, and wherever else a result is 0 / 0, it is 0.
//
// Which outputs: those of `cross_entropy` are logits, floating-point with the classes as dimension 1, for targets that
// are class numbers of an integer dtype. Those of `binary_cross_entropy` are one for each target, of the targets'
// shape or with a dimension 1 of size 1 more; the targets are 0 or 1, of any dtype. Outputs of an integer dtype are
// predicted classes. Tensors on an accelerator are copied to the host.
//
// An `update` throws a UsageError that names the metric where a dtype (LS-DTYPE), a shape (LS-SHAPE), a target
// (LS-TARGET) or a weight (LS-WEIGHT) does not go with it.

struct AccuracyOptions {
  Outputs outputs = Outputs::kAuto;
  std::string name = "accuracy";
};
/// The share of right predictions. With one output for each target: of right decisions.
MetricSpec accuracy(AccuracyOptions options = {});

/// The share of targets that are among the k largest logits, of which those that equal the k-th are all part. Its name
/// is "top_<k>_accuracy". A `k` below 1 is a UsageError (LS-OPTION).
MetricSpec top_k(int64_t k);

struct DecisionOptions {
  Average average = Average::kAuto;
  Outputs outputs = Outputs::kAuto;
  /// How many classes, or outputs for each sample, there are. By default each batch says; then what is kept grows by a
  /// row for each class of each batch. With a number it does not grow, and other outputs are an error (LS-SHAPE).
  int64_t classes = 0;
  std::string name = {};  // by default the function's
};
/// Of what was predicted as a class, the share that is of it. Each output of [size, n] that goes with a target of its
/// own is a class of its own here; one output for each sample is two classes, of which yes is class 1.
MetricSpec precision(DecisionOptions options = {});
/// Of what is of a class, the share that was predicted as it.
MetricSpec recall(DecisionOptions options = {});
/// The harmonic mean of precision and recall.
MetricSpec f1(DecisionOptions options = {});

struct AucOptions {
  /// 0: exact, where each sample's score is kept until the result, and equal scores count half. Otherwise as Keras': so
  /// many thresholds, evenly from 0 to 1, between which scores count as equal, and nothing is kept. Then rare events,
  /// whose scores are all small, come out wrong. 1 and numbers below 0 are a UsageError (LS-OPTION).
  int64_t thresholds = 0;
  Outputs outputs = Outputs::kAuto;  // matters with thresholds only
  std::string name = "auc";
};
/// The area under the curve of true positives over false positives: how probable it is that a random positive has a
/// higher score than a random negative. Outputs as binary ones, or logits of two classes. NaN where a score is NaN.
MetricSpec auc(AucOptions options = {});
/// The area under precision over recall as a step function: the mean of precision over the positives, in the order of
/// scores. Keeps each sample's score, as exact auc does. Its name is "average_precision".
MetricSpec average_precision();

/// The mean over all elements. Both tensors have one shape, except for a dimension 1 of size 1.
MetricSpec mean_squared_error();
MetricSpec mean_absolute_error();

/// e to the power of the mean negative log likelihood over everything that was counted, from logits; 1 where nothing
/// counted.
MetricSpec perplexity();

/// A number for each pair of target and prediction, "confusion_matrix/<target>/<prediction>": how often the pair came,
/// in weights. With 2 classes also for binary outputs.
MetricSpec confusion_matrix(int64_t classes, Outputs outputs = Outputs::kAuto);

/// The mean of any value. `fn(output, batch)` gives values of shape [size, ...], rows of padding included, each of
/// which is weighted as its sample; or one value without dimensions, the mean over the part's samples. `output` is the
/// model's, without a graph, and not copied to the host.
MetricSpec mean(std::string name, std::function<at::Tensor(const at::Tensor& output, const Batch& batch)> fn,
                bool higher_is_better = false);
/// The same with a number for the part.
MetricSpec mean(std::string name, std::function<double(const at::Tensor& output, const Batch& batch)> fn,
                bool higher_is_better = false);

/// A metric of the program's own: `count` gives `sums` numbers of a part, real and of shape [sums], which are added in
/// float64 over everything; `result` makes the metric of them. What `count` must do, MetricSpec::update says.
MetricSpec custom(std::string name, int64_t sums,
                  std::function<at::Tensor(const at::Tensor& output, const Batch& batch)> count,
                  std::function<double(const at::Tensor& sums)> result, bool higher_is_better = true);

/// The weights of a batch's samples as the metrics above take them: its entry "weight" or "weights". Undefined where it
/// has neither. A batch that has both is a UsageError (LS-BATCH).
at::Tensor sample_weights(const Batch& batch);

}  // namespace metrics
}  // namespace lockstep
