// What metrics compute of outputs, targets and weights: the same for metrics that a step updates and for those of a
// Trainer.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <string>

#include "lockstep/core/error.h"
#include "lockstep/strategy/metrics.h"

namespace lockstep::internal::inline strategy {

/// The arguments of one update of one metric. Its errors name the metric, and the replica where it is given. Tensors
/// that members give have no graph. What it is made of must outlive it.
class MetricArguments {
 public:
  /// `kind` is a string literal, such as "metrics::Mean". A replica below 0: whoever calls names the replica.
  MetricArguments(const char* kind, const std::string& name, int64_t replica = -1)
      : kind_(kind), name_(name), replica_(replica) {}

  /// Throws a UsageError: "metrics::Mean 'loss' on replica 1 was given <fact>".
  [[noreturn]] void refuse(ErrorCode code, const std::string& fact, const std::string& remedy) const;

  /// Refuses a tensor that is not dense or not in the host's memory; any dtype passes.
  void require_operand(const at::Tensor& tensor, const char* what) const;
  /// The same, and refuses one that has no real numbers.
  void require_real(const at::Tensor& tensor, const char* what) const;
  void require_weight(double weight) const;
  /// Refuses two shapes that are not one, as nothing is broadcast.
  void require_one_shape(const at::Tensor& predictions, const at::Tensor& targets) const;

  /// Weights for values of shape `sizes`, as float64 of that shape.
  at::Tensor expanded(const metrics::Weights& weights, c10::IntArrayRef sizes) const;
  /// Class numbers as int64.
  at::Tensor classes_of(const at::Tensor& targets) const;
  /// Weights of class numbers; one that is ignored has weight 0.
  at::Tensor counted(const at::Tensor& classes, const metrics::Weights& weights) const;
  /// The dimension of `logits` that has the classes, as in cross_entropy: 1, or 0 where there is only one dimension.
  /// Refuses a class that is neither one of the logits' nor ignored.
  int64_t class_dimension(const at::Tensor& logits, const at::Tensor& classes) const;

  /// The class of each target that is predicted: of the largest logit, or of the first of the largest; or `predictions`
  /// themselves, where they are no floating-point numbers.
  at::Tensor predicted_classes(const at::Tensor& predictions, const at::Tensor& classes) const;
  /// Whether each class is among the k largest logits, of which those that equal the k-th are all part.
  at::Tensor are_among_top(const at::Tensor& logits, const at::Tensor& classes, int64_t k) const;
  /// Of each class, to the base e.
  at::Tensor negative_log_likelihoods(const at::Tensor& logits, const at::Tensor& classes) const;
  /// Prediction minus target, in float64.
  at::Tensor differences(const at::Tensor& predictions, const at::Tensor& targets) const;
  /// Float64 [2]: the sum of weighted values, and the sum of weights. A value of weight 0 does not count, whatever it
  /// is.
  at::Tensor weighted_sums(const at::Tensor& values, const metrics::Weights& weights) const;

 private:
  const char* const kind_;
  const std::string& name_;
  const int64_t replica_;
};

/// The class number that does not count: cross_entropy's ignore_index.
inline constexpr int64_t kIgnoredClass = -100;

/// A tensor's dtype, shape and device for an error's text.
std::string described_operand(const at::Tensor& tensor);

}  // namespace lockstep::internal::strategy
