// Keeps weights' gradients as factors, by a kernel for the matrix product that computes them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/core/factored_gradients.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal {

/// While it lives, the gradients of some variables stay factors where a backward in a step computes them as one matrix
/// product of at most kMostSamplesThatPay samples (kMostSamples where `factoring` is kAlways), and where LibTorch adds
/// in the order of OuterProduct, so that no bit depends on it.
class FactoredWeights {
 public:
  /// Of a smaller matrix the gradient stays in the caches anyway.
  static constexpr int64_t kFewestElements = 1 << 16;
  /// A product of more samples is faster in LibTorch's own kernel, where it was measured (AVX2: even at 32).
  static constexpr int64_t kMostSamplesThatPay = 16;
  /// Blocks are made from some whole rows at a time, which must fit into a cache.
  static constexpr int64_t kMostColumns = 1 << 15;

  /// Of `variables`, which one optimizer updates, takes the dense float32 matrices of at least kFewestElements, or of
  /// any size where `factoring` is kAlways. Takes none where the fused update does not add the replicas' gradients
  /// itself, where the processor has no fused multiply-add, and where this LibTorch does not say which gradient it
  /// computes. Notes in each variable what holds. Call while no replica of the variables' strategy computes.
  FactoredWeights(const std::vector<std::shared_ptr<VariableState>>& variables, Factoring factoring);
  ~FactoredWeights();
  FactoredWeights(const FactoredWeights&) = delete;
  FactoredWeights& operator=(const FactoredWeights&) = delete;

 private:
  std::vector<std::shared_ptr<VariableState>> variables_;
};

}  // namespace lockstep::internal
