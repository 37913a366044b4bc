// Precision, recall, F1 and the confusion matrix.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/train/metrics/class_table.h"
#include "lockstep/train/metrics/metric_part.h"
#include "lockstep/train/trainer_metrics.h"

namespace lockstep::metrics {

namespace {

using internal::ClassCounts;
using internal::ClassTable;
using internal::MetricArguments;
using internal::MetricPart;
using internal::share;

double precision_of(const ClassCounts& one) { return share(one.right, one.predicted); }
double recall_of(const ClassCounts& one) { return share(one.right, one.actual); }
/// With precision r/p and recall r/a, the harmonic mean is 2r / (p + a).
double f1_of(const ClassCounts& one) { return share(2 * one.right, one.predicted + one.actual); }

using OfOneClass = double (*)(const ClassCounts&);

std::map<std::string, double> averaged(const std::string& name, const ClassTable::Whole& whole, Average average,
                                       OfOneClass of) {
  if (average == Average::kEach) {
    std::map<std::string, double> each;
    for (std::size_t i = 0; i < whole.classes.size(); ++i) {
      each[fmt::format("{}/{}", name, i)] = of(whole.classes[i]);
    }
    return each;
  }
  if (average == Average::kAuto && !whole.own_targets && whole.classes.size() == 2) {
    return {{name, of(whole.classes[1])}};
  }
  ClassCounts all;
  double sum = 0;
  double weighted = 0;
  for (const ClassCounts& one : whole.classes) {
    all = {
        .actual = all.actual + one.actual, .predicted = all.predicted + one.predicted, .right = all.right + one.right};
    sum += of(one);
    weighted += of(one) * one.actual;
  }
  if (average == Average::kMicro) return {{name, of(all)}};
  if (average == Average::kWeighted) return {{name, share(weighted, all.actual)}};
  return {{name, share(sum, static_cast<double>(whole.classes.size()))}};
}

MetricSpec decision_spec(const char* kind, std::string default_name, DecisionOptions options, OfOneClass of) {
  const std::string name = options.name.empty() ? std::move(default_name) : options.name;
  if (options.classes < 0) {
    throw UsageError("LS-OPTION", fmt::format("{} '{}' was asked for {} classes", kind, name, options.classes),
                     "give the number of classes, or leave .classes out");
  }
  const ClassTable table(options.classes);
  return {.name = name,
          .sums = table.sums(),
          .columns = table.columns(),
          .update =
              [kind, name, table](const at::Tensor& output, const Batch& batch) {
                return table.count({kind, name}, output, batch);
              },
          .results =
              [name, table, options, of](const MetricCounts& whole) {
                return averaged(name, table.whole(whole, options.outputs), options.average, of);
              }};
}

}  // namespace

MetricSpec precision(DecisionOptions options) {
  return decision_spec("metrics::precision", "precision", std::move(options), precision_of);
}
MetricSpec recall(DecisionOptions options) {
  return decision_spec("metrics::recall", "recall", std::move(options), recall_of);
}
MetricSpec f1(DecisionOptions options) { return decision_spec("metrics::f1", "f1", std::move(options), f1_of); }

MetricSpec confusion_matrix(int64_t classes, Outputs outputs) {
  if (classes < 2) {
    throw UsageError("LS-OPTION", fmt::format("metrics::confusion_matrix was asked for {} classes", classes),
                     "give the number of classes, from 2");
  }
  // Sums: the matrix by rows. With two classes it comes twice, for outputs that are probabilities and that are logits,
  // and then how many outputs are no probabilities.
  const std::string name = "confusion_matrix";
  const int64_t cells = classes * classes;
  return {
      .name = name,
      .sums = classes == 2 ? 2 * cells + 1 : cells,
      .update =
          [name, classes, cells](const at::Tensor& output, const Batch& batch) {
            const MetricArguments arguments("metrics::confusion_matrix", name);
            const MetricPart part(arguments, output, batch);
            const auto matrix = [&](const at::Tensor& target, const at::Tensor& predicted, const at::Tensor& weights) {
              const at::Tensor pairs = target.mul(classes).add(predicted).reshape({-1});
              return at::bincount(pairs, weights.reshape({-1}), cells);
            };
            if (classes == 2) {
              if (const auto binary = internal::binary_part(arguments, part)) {
                const at::Tensor target = binary->labels.to(at::kLong);
                return MetricCounts{.sums = at::cat({matrix(target, binary->as_share.to(at::kLong), binary->weights),
                                                     matrix(target, binary->as_logit.to(at::kLong), binary->weights),
                                                     binary->outside.sum().to(at::kDouble).reshape({1})})};
              }
            }
            const at::Tensor wanted = arguments.classes_of(part.target);
            const at::Tensor predicted = arguments.predicted_classes(part.output, wanted);
            const at::Tensor known = wanted.clamp_min(0);
            if (known.ge(classes).logical_or(predicted.ge(classes)).logical_or(predicted.lt(0)).any().item<bool>()) {
              arguments.refuse("LS-TARGET", fmt::format("a class outside of 0 to {}", classes - 1),
                               "number classes from 0, and make the matrix with their number");
            }
            const at::Tensor one = matrix(known, predicted, arguments.counted(wanted, part.weights));
            return MetricCounts{.sums = classes == 2 ? at::cat({one, one, at::zeros({1}, at::kDouble)}) : one};
          },
      .results =
          [name, classes, cells, outputs](const MetricCounts& whole) {
            const std::vector<double> counted = internal::numbers_of(whole.sums);
            const int64_t first = classes == 2 && internal::are_logits(outputs, counted.back()) ? cells : 0;
            std::map<std::string, double> numbers;
            for (int64_t i = 0; i < cells; ++i) {
              numbers[fmt::format("{}/{}/{}", name, i / classes, i % classes)] =
                  counted[static_cast<std::size_t>(first + i)];
            }
            return numbers;
          }};
}

}  // namespace lockstep::metrics
