#include "lockstep/strategy/metric_arguments.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <vector>

#include "lockstep/reduce/operands.h"

namespace lockstep::internal::inline strategy {

namespace {

bool is_real(at::ScalarType type) { return at::isFloatingType(type) || at::isIntegralType(type, /*includeBool=*/true); }

/// The same logits in a dtype that LibTorch computes with; no value changes.
at::Tensor wide(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? logits.detach() : logits.detach().to(at::kFloat);
}

/// The logit of each class; an arbitrary value where the class is ignored.
at::Tensor at_classes(const at::Tensor& logits, const at::Tensor& classes, int64_t dimension) {
  return logits.gather(dimension, classes.clamp_min(0).unsqueeze(dimension));
}

}  // namespace

std::string described_operand(const at::Tensor& tensor) {
  if (!tensor.defined()) return "no tensor";
  if (tensor.is_nested()) return "a nested tensor";
  return fmt::format("{}{}{}", tensor.layout() == at::kStrided ? "" : "sparse ", shape_text(tensor),
                     tensor.device().is_cpu() ? "" : " on " + tensor.device().str());
}

void MetricArguments::refuse(ErrorCode code, const std::string& fact, const std::string& remedy) const {
  const std::string replica = replica_ < 0 ? "" : fmt::format(" on replica {}", replica_);
  throw UsageError(code, fmt::format("{} '{}'{} was given {}", kind_, name_, replica, fact), remedy);
}

void MetricArguments::require_operand(const at::Tensor& tensor, const char* what) const {
  const std::string fact = fmt::format("{} as {}", what, described_operand(tensor));
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_nested()) {
    refuse("LS-NOT-DENSE", fact, "give a dense tensor of real numbers");
  }
  if (!tensor.device().is_cpu()) refuse("LS-NOT-HOST", fact, "give a tensor in the host's memory");
}

void MetricArguments::require_real(const at::Tensor& tensor, const char* what) const {
  require_operand(tensor, what);
  if (is_real(tensor.scalar_type())) return;
  refuse("LS-DTYPE", fmt::format("{} as {}", what, described_operand(tensor)), "give a dense tensor of real numbers");
}

void MetricArguments::require_weight(double weight) const {
  if (weight >= 0 && std::isfinite(weight)) return;
  refuse("LS-WEIGHT", fmt::format("weight {}", weight), "give a finite weight from 0");
}

void MetricArguments::require_one_shape(const at::Tensor& predictions, const at::Tensor& targets) const {
  if (predictions.sizes() == targets.sizes()) return;
  refuse("LS-SHAPE",
         fmt::format("predictions of shape [{}] for targets of shape [{}]", fmt::join(predictions.sizes(), ", "),
                     fmt::join(targets.sizes(), ", ")),
         "give both in one shape, with reshape where a dimension of size 1 is too many");
}

at::Tensor MetricArguments::expanded(const metrics::Weights& weights, c10::IntArrayRef sizes) const {
  if (!weights.each().defined()) {
    require_weight(weights.all());
    return at::full(sizes, weights.all(), at::kDouble);
  }
  const at::Tensor& each = weights.each();
  require_real(each, "weights");
  const auto dimensions = static_cast<std::size_t>(each.dim());
  if (dimensions > sizes.size() || each.sizes() != sizes.slice(0, dimensions)) {
    refuse("LS-SHAPE",
           fmt::format("weights of shape [{}] for values of shape [{}]", fmt::join(each.sizes(), ", "),
                       fmt::join(sizes, ", ")),
           "give a weight for each value, or for each index of their first dimensions");
  }
  const at::Tensor numbers = each.detach().to(at::kDouble);
  if (!numbers.ge(0).logical_and(numbers.lt(std::numeric_limits<double>::infinity())).all().item<bool>()) {
    refuse("LS-WEIGHT", "weights below 0 or not finite", "give finite weights from 0");
  }
  std::vector<int64_t> shape = each.sizes().vec();
  shape.resize(sizes.size(), 1);
  return numbers.reshape(shape).expand(sizes);
}

at::Tensor MetricArguments::classes_of(const at::Tensor& targets) const {
  require_operand(targets, "targets");
  if (!at::isIntegralType(targets.scalar_type(), /*includeBool=*/true)) {
    refuse("LS-DTYPE", fmt::format("targets as {}", described_operand(targets)),
           "give class numbers of an integer dtype, without one-hot encoding");
  }
  return targets.detach().to(at::kLong);
}

at::Tensor MetricArguments::counted(const at::Tensor& classes, const metrics::Weights& weights) const {
  return expanded(weights, classes.sizes()).mul(classes.ne(kIgnoredClass));
}

int64_t MetricArguments::class_dimension(const at::Tensor& logits, const at::Tensor& classes) const {
  const int64_t dimension = logits.dim() == 1 ? 0 : 1;
  std::vector<int64_t> rest = logits.sizes().vec();
  if (logits.dim() > 0) rest.erase(rest.begin() + dimension);
  if (logits.dim() == 0 || !at::isFloatingType(logits.scalar_type()) || classes.sizes() != rest ||
      logits.size(dimension) == 0) {
    refuse("LS-SHAPE",
           fmt::format("logits as {} for targets of shape [{}]", described_operand(logits),
                       fmt::join(classes.sizes(), ", ")),
           "give logits as to cross_entropy: floating-point, of the targets' shape with the classes as dimension 1");
  }
  const int64_t count = logits.size(dimension);
  const at::Tensor wrong = classes.lt(0).logical_or(classes.ge(count)).logical_and(classes.ne(kIgnoredClass));
  if (wrong.any().item<bool>()) {
    refuse("LS-TARGET",
           fmt::format("target {} for logits of {} classes", classes.masked_select(wrong)[0].item<int64_t>(), count),
           fmt::format("number classes from 0 to {}; a target of {} is left out", count - 1, kIgnoredClass));
  }
  return dimension;
}

at::Tensor MetricArguments::predicted_classes(const at::Tensor& predictions, const at::Tensor& classes) const {
  require_real(predictions, "predictions");
  if (at::isFloatingType(predictions.scalar_type())) {
    const at::Tensor logits = wide(predictions);
    return logits.argmax(class_dimension(logits, classes));
  }
  if (predictions.sizes() != classes.sizes()) {
    refuse("LS-SHAPE",
           fmt::format("predictions as {} for targets of shape [{}]", described_operand(predictions),
                       fmt::join(classes.sizes(), ", ")),
           "give a prediction for each target, or floating-point logits");
  }
  return predictions.detach().to(at::kLong);
}

at::Tensor MetricArguments::are_among_top(const at::Tensor& logits, const at::Tensor& classes, int64_t k) const {
  require_real(logits, "logits");
  const at::Tensor values = wide(logits);
  const int64_t dimension = class_dimension(values, classes);
  if (values.size(dimension) < k) {
    refuse("LS-SHAPE", fmt::format("logits of {} classes for the top {}", values.size(dimension), k),
           "choose k up to the number of classes");
  }
  // topk is not used, as it chooses freely among equal logits. In this form NaN is above everything, itself included.
  return values.le(at_classes(values, classes, dimension)).logical_not().sum(dimension).lt(k);
}

at::Tensor MetricArguments::negative_log_likelihoods(const at::Tensor& logits, const at::Tensor& classes) const {
  require_real(logits, "logits");
  const int64_t dimension = class_dimension(logits, classes);
  return at_classes(at::log_softmax(wide(logits), dimension), classes, dimension).squeeze(dimension).neg();
}

at::Tensor MetricArguments::differences(const at::Tensor& predictions, const at::Tensor& targets) const {
  require_real(predictions, "predictions");
  require_real(targets, "targets");
  require_one_shape(predictions, targets);
  return predictions.detach().to(at::kDouble).sub(targets.detach().to(at::kDouble));
}

at::Tensor MetricArguments::weighted_sums(const at::Tensor& values, const metrics::Weights& weights) const {
  require_real(values, "values");
  const at::Tensor numbers = values.detach().to(at::kDouble);
  if (weights.each().defined()) {
    const at::Tensor weight = expanded(weights, numbers.sizes());
    return at::stack({numbers.mul(weight).masked_fill(weight.eq(0), 0).sum(), weight.sum()});
  }
  require_weight(weights.all());
  if (weights.all() == 0) return at::zeros({2}, at::kDouble);
  return at::stack({numbers.sum().mul(weights.all()),
                    at::full({}, weights.all() * static_cast<double>(numbers.numel()), numbers.options())});
}

}  // namespace lockstep::internal::strategy
