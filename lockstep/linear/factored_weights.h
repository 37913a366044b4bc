// Which weights' gradients stay factors, and the product that computes such a gradient.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/core/tuning/factored_gradients.h"
#include "lockstep/linear/factored_tensor.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline linear {

/// While it lives, the gradients of some variables stay factors where a backward in a step computes them as one matrix
/// product of at most most_samples(elements) samples (kMostSamples where `factoring` is kAlways), and where LibTorch
/// adds in the order of OuterProduct, so that no bit depends on it.
class FactoredWeights {
 public:
  /// Of a smaller matrix the gradient stays in the caches anyway.
  static constexpr int64_t kFewestElements = 1 << 18;
  /// A product of more samples is as fast or faster in LibTorch's own kernel, as measured on an EPYC with AVX2.
  static constexpr int64_t most_samples(int64_t elements) { return elements >= 1 << 22 ? kMostSamples : 64; }
  /// Blocks are made from some whole rows at a time, which must fit into a cache.
  static constexpr int64_t kMostColumns = 1 << 15;

  /// Of `variables`, which one optimizer updates, takes the dense float32 matrices of at least kFewestElements, or of
  /// any size where `factoring` is kAlways. Takes none where the fused update does not add the replicas' gradients
  /// itself, where the processor has no fused multiply-add, and where this LibTorch does not say which gradient it
  /// computes. Notes in each variable what holds. Call while no replica of the variables' strategy computes. Requires
  /// use_step_products().
  FactoredWeights(const std::vector<std::shared_ptr<VariableState>>& variables, Factoring factoring);
  ~FactoredWeights();
  FactoredWeights(const FactoredWeights&) = delete;
  FactoredWeights& operator=(const FactoredWeights&) = delete;

 private:
  std::vector<std::shared_ptr<VariableState>> variables_;
};

/// While it lives, the products of the calling thread that may be the gradient of `weight` are taken for it. For a step
/// that is repeated without a graph.
class WeightOfProductScope {
 public:
  explicit WeightOfProductScope(const at::Tensor& weight);
  ~WeightOfProductScope();
  WeightOfProductScope(const WeightOfProductScope&) = delete;
  WeightOfProductScope& operator=(const WeightOfProductScope&) = delete;

 private:
  const at::Tensor* const outer_;
};

/// Whether `left` times `right` may be the gradient of a weight that a FactoredWeights has taken. Cheap, and false for
/// nearly all products.
bool may_stay_factors(const at::Tensor& left, const at::Tensor& right);

/// What a replica's aten::mm gives for `left` times `right`: a tensor without memory (make_factored()) where that is
/// the gradient of a weight that a FactoredWeights has taken, otherwise an undefined tensor.
at::Tensor factored_gradient(const at::Tensor& left, const at::Tensor& right);

}  // namespace lockstep::internal::linear
