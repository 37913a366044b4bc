// What is done with a summed gradient before an update reads it.
#pragma once

#include <cstdint>
#include <limits>

namespace lockstep::internal::inline optim {

struct Clip {
  double factor = 1;                                      // the gradient is multiplied by it
  double most = std::numeric_limits<double>::infinity();  // then no element has a larger magnitude
  bool limits() const { return most < std::numeric_limits<double>::infinity(); }
};

/// By what gradients of this norm are multiplied so that it is at most `most`: the factor of
/// torch::nn::utils::clip_grad_norm_. One that is NaN stays NaN, because a comparison with it is false.
inline double clip_factor(double norm, double most) {
  const double factor = most / (norm + 1e-6);
  return factor > 1 ? 1 : factor;
}

/// The sum over replicas of a part of a variable's gradients. Where two replicas both have a gradient, the update's own
/// pass adds `right` to `left`. Otherwise `left` is the sum, and `right` is null.
template <class T>
struct GradientSum {
  const T* left;
  const T* right;
};

/// Writes the clipped sum to `to`, where there is room for `count` elements; returns the sum of squares before that. T
/// is float or double.
template <class T>
double write_clipped(const GradientSum<T>& sum, int64_t count, const Clip& clip, T* to);

}  // namespace lockstep::internal::optim
