#include "lockstep/train/metrics/class_table.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace lockstep::internal::inline train {

namespace {

/// The sums over all but dimension 1, or over all where there is only one dimension: [outputs of a sample].
at::Tensor by_output(const at::Tensor& values) {
  if (values.dim() < 2) return values.sum().reshape({1});
  return values.transpose(0, 1).reshape({values.size(1), -1}).sum(1);
}

/// How often each class comes, in weights.
at::Tensor by_class(const at::Tensor& classes, const at::Tensor& weights, int64_t count) {
  return at::bincount(classes.reshape({-1}), weights.reshape({-1}), count);
}

}  // namespace

MetricCounts ClassTable::count(const MetricArguments& arguments, const at::Tensor& output, const Batch& batch) const {
  const MetricPart part(arguments, output, batch);
  at::Tensor table;  // [classes, kColumns]
  const std::optional<BinaryPart> binary = binary_part(arguments, part);
  if (binary) {
    const at::Tensor actual = binary->labels.eq(1);
    const auto weight = [&](const at::Tensor& which) { return by_output(binary->weights.mul(which)); };
    table = at::stack({weight(actual), weight(binary->as_share), weight(actual.logical_and(binary->as_share)),
                       weight(binary->as_logit), weight(actual.logical_and(binary->as_logit)),
                       by_output(binary->outside.to(at::kDouble)), by_output(binary->weights)},
                      1);
  } else {
    const at::Tensor wanted = arguments.classes_of(part.target);
    const at::Tensor predicted = arguments.predicted_classes(part.output, wanted);
    const at::Tensor weights = arguments.counted(wanted, part.weights);
    if (!at::isFloatingType(part.output.scalar_type()) && classes_ == 0) {
      arguments.refuse("LS-SHAPE", "predicted classes, which do not say how many classes there are",
                       "set .classes, or give logits");
    }
    const int64_t count = at::isFloatingType(part.output.scalar_type()) ? part.output.size(1) : classes_;
    if (!at::isFloatingType(part.output.scalar_type()) && wanted.numel() > 0) {
      const at::Tensor both = at::cat({wanted.clamp_min(0).reshape({-1}), predicted.reshape({-1})});
      if (both.max().item<int64_t>() >= count || both.min().item<int64_t>() < 0) {
        arguments.refuse("LS-TARGET", fmt::format("a class outside of 0 to {}", count - 1),
                         "number classes from 0, and set .classes to their number");
      }
    }
    const at::Tensor known = wanted.clamp_min(0);
    const at::Tensor chosen = by_class(predicted, weights, count);
    const at::Tensor right = by_class(known, weights.mul(predicted.eq(wanted)), count);
    const at::Tensor none = at::zeros_like(right);
    table = at::stack({by_class(known, weights, count), chosen, right, chosen, right, none, none}, 1);
  }
  const int64_t classes = table.size(0);
  if (classes_ != 0) {
    if (classes != classes_) {
      arguments.refuse("LS-SHAPE", fmt::format("outputs of {} classes where {} were expected", classes, classes_),
                       "set .classes to the number of the model's outputs");
    }
    const double own = binary ? static_cast<double>(binary->scores.numel()) : 0;
    return {.sums = at::cat({table.reshape({-1}), at::full({1}, own, at::kDouble)})};
  }
  const at::Tensor numbers = at::arange(classes, at::kDouble).unsqueeze(1);
  const at::Tensor rows = at::cat({numbers, at::full({classes, 1}, static_cast<double>(classes), at::kDouble),
                                   at::full({classes, 1}, binary ? 1.0 : 0.0, at::kDouble), table},
                                  1);
  return {.rows = rows.index({table.ne(0).any(1)})};
}

ClassTable::Whole ClassTable::whole(const MetricCounts& counts, metrics::Outputs outputs) const {
  // Added up class by class, in kColumns each.
  std::vector<double> table;
  bool own_targets = false;
  if (classes_ != 0) {
    table = numbers_of(counts.sums);
    own_targets = table.back() > 0;
    table.pop_back();
  } else {
    for (const std::vector<double>& row : sorted_rows(counts.rows)) {
      table.resize(std::max(table.size(), static_cast<std::size_t>(row[1]) * kColumns));
      own_targets = own_targets || row[2] > 0;
      const std::size_t first = static_cast<std::size_t>(row[0]) * kColumns;
      for (std::size_t i = 0; i < kColumns; ++i) table[first + i] += row[3 + i];
    }
  }
  double outside = 0;
  for (std::size_t first = 0; first < table.size(); first += kColumns) outside += table[first + 5];
  const std::size_t form = are_logits(outputs, outside) ? 3 : 1;
  Whole whole{.own_targets = own_targets};
  for (std::size_t first = 0; first < table.size(); first += kColumns) {
    whole.classes.push_back(
        {.actual = table[first], .predicted = table[first + form], .right = table[first + form + 1]});
  }
  if (whole.classes.size() == 1) {
    // Whatever is not class 1 is class 0: what neither is of class 1 nor was predicted as it, is right.
    const ClassCounts& yes = whole.classes.front();
    const double all = table[6];
    const ClassCounts no{.actual = all - yes.actual,
                         .predicted = all - yes.predicted,
                         .right = (all - yes.predicted) - (yes.actual - yes.right)};
    whole.classes.insert(whole.classes.begin(), no);
    whole.own_targets = false;
  }
  return whole;
}

}  // namespace lockstep::internal::train
