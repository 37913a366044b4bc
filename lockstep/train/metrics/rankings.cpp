// The metrics that depend on the order of scores: the area under a curve, and average precision.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/train/metrics/metric_part.h"
#include "lockstep/train/trainer_metrics.h"

namespace lockstep::metrics {

namespace {

using internal::BinaryPart;
using internal::MetricArguments;
using internal::MetricPart;
using internal::share;

/// The weights of the samples of one score, or of a range of scores.
struct ScoreGroup {
  double positive = 0;
  double negative = 0;
};

/// The scores of a part. Of logits of two classes, how much that of class 1 is above that of class 0.
BinaryPart scored(const MetricArguments& arguments, const at::Tensor& output, const Batch& batch) {
  MetricPart part(arguments, output, batch);
  if (auto binary = internal::binary_part(arguments, part)) return *binary;
  const at::Tensor wanted = arguments.classes_of(part.target);
  if (arguments.class_dimension(part.output, wanted) != 1 || part.output.size(1) != 2) {
    arguments.refuse("LS-SHAPE", fmt::format("outputs as {}", internal::described_operand(part.output)),
                     "give one output for each target, or logits of two classes");
  }
  const at::Tensor wide = part.output.to(at::kDouble);
  part.output = wide.select(1, 1).sub(wide.select(1, 0));
  return *internal::binary_part(arguments, part);
}

/// The groups of equal scores, from the greatest score. Rows are score, label and weight; without NaN.
std::vector<ScoreGroup> groups_of(const std::vector<std::vector<double>>& sorted) {
  std::vector<ScoreGroup> groups;
  for (std::size_t i = sorted.size(); i-- > 0;) {
    if (i + 1 == sorted.size() || sorted[i][0] != sorted[i + 1][0]) groups.emplace_back();
    (sorted[i][1] > 0 ? groups.back().positive : groups.back().negative) += sorted[i][2];
  }
  return groups;
}

/// The share of pairs of a positive and a negative in which the positive comes first; pairs within a group count half.
double area(const std::vector<ScoreGroup>& groups) {
  double pairs = 0;
  double positive = 0;
  double negative = 0;
  for (const ScoreGroup& group : groups) {
    pairs += group.negative * (positive + group.positive / 2);
    positive += group.positive;
    negative += group.negative;
  }
  return share(pairs, positive * negative);
}

double mean_precision(const std::vector<ScoreGroup>& groups) {
  double sum = 0;
  double positive = 0;
  double all = 0;
  for (const ScoreGroup& group : groups) {
    positive += group.positive;
    all += group.positive + group.negative;
    sum += group.positive * share(positive, all);
  }
  return share(sum, positive);
}

/// Keeps each sample's score, label and weight; `result(groups)` makes a number of them.
template <class Result>
MetricSpec ranking_spec(const char* kind, std::string name, Result result) {
  return {.name = name,
          .columns = 3,
          .update =
              [kind, name](const at::Tensor& output, const Batch& batch) {
                const BinaryPart part = scored({kind, name}, output, batch);
                const at::Tensor rows =
                    at::stack({part.scores.reshape({-1}), part.labels.reshape({-1}), part.weights.reshape({-1})}, 1);
                return MetricCounts{.rows = rows.index({rows.select(1, 2).gt(0)})};
              },
          .results =
              [name, result](const MetricCounts& whole) {
                const bool has_nan = whole.rows.defined() && whole.rows.isnan().any().item<bool>();
                return std::map<std::string, double>{
                    {name, has_nan ? std::numeric_limits<double>::quiet_NaN()
                                   : result(groups_of(internal::sorted_rows(whole.rows)))}};
              }};
}

/// Counts positives and negatives between thresholds i / (thresholds - 1): how many of the inner thresholds a score is
/// above. Sums: positives and negatives as probabilities, both as logits, and how many are no probabilities.
MetricSpec threshold_spec(AucOptions options) {
  const int64_t ranges = options.thresholds - 1;
  const std::string name = options.name;
  return {.name = name,
          .sums = 4 * ranges + 1,
          .update =
              [name, ranges](const at::Tensor& output, const Batch& batch) {
                const BinaryPart part = scored({"metrics::auc", name}, output, batch);
                const at::Tensor inner = at::arange(1, ranges, at::kDouble).div(static_cast<double>(ranges));
                const at::Tensor positive = part.weights.mul(part.labels).reshape({-1});
                const at::Tensor negative = part.weights.mul(part.labels.eq(0)).reshape({-1});
                std::vector<at::Tensor> sums;
                for (const at::Tensor& scores : {part.scores, part.scores.sigmoid()}) {
                  const at::Tensor range = at::searchsorted(inner, scores.reshape({-1}).contiguous());
                  sums.push_back(at::bincount(range, positive, ranges));
                  sums.push_back(at::bincount(range, negative, ranges));
                }
                sums.push_back(part.outside.sum().to(at::kDouble).reshape({1}));
                return MetricCounts{.sums = at::cat(sums)};
              },
          .results =
              [name, ranges, outputs = options.outputs](const MetricCounts& whole) {
                const std::vector<double> counted = internal::numbers_of(whole.sums);
                const auto count = static_cast<std::size_t>(ranges);
                const std::size_t first = internal::are_logits(outputs, counted.back()) ? 2 * count : 0;
                std::vector<ScoreGroup> groups;
                for (std::size_t i = count; i-- > 0;) {
                  groups.push_back({.positive = counted[first + i], .negative = counted[first + count + i]});
                }
                return std::map<std::string, double>{{name, area(groups)}};
              }};
}

}  // namespace

MetricSpec auc(AucOptions options) {
  if (options.thresholds < 0 || options.thresholds == 1) {
    throw UsageError("LS-OPTION", fmt::format("metrics::auc was asked for {} thresholds", options.thresholds),
                     "choose 0, which is exact, or a number from 2");
  }
  return options.thresholds == 0 ? ranking_spec("metrics::auc", options.name, area) : threshold_spec(options);
}

MetricSpec average_precision() {
  return ranking_spec("metrics::average_precision", "average_precision", mean_precision);
}

}  // namespace lockstep::metrics
