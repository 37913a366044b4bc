// The products of a linear layer whose weight does not fit in the caches, for few samples: the layer's output and the
// gradient of its input.
#pragma once

#include <cstdint>

namespace lockstep::internal {

/// What a product is given. All matrices are dense, row by row, and need no alignment beyond that of a float. The
/// caller owns the memory. `out` and `scratch` overlap nothing else; any size may be 0.
struct FewSamplesWork {
  const float* weight;  // [rows, columns]
  int64_t rows;         // the layer's outputs
  int64_t columns;      // the layer's inputs
  const float* input;   // forward: [samples, columns]; input_gradient: [samples, rows], the gradient of the output
  int64_t samples;
  const float* bias;  // forward: [rows], or null; input_gradient does not read it
  float* out;         // forward: [samples, rows]; input_gradient: [samples, columns]
  float* scratch;     // few_samples_scratch() floats, for this call only
};

/// Both products run on the calling thread, in its floating-point modes, and read the weight from memory once. Any
/// thread may call; calls with `out` and `scratch` of their own may run at the same time.
///
/// The order of additions depends only on the depth of a product: `columns` for forward, `rows` for input_gradient.
/// The depth is cut into chains of chain_length(depth). Each chain begins with +0 and adds its products in order, by
/// fused multiply-adds. The chains are added up in order, starting from the bias or, without one, from +0. So the bits
/// of a sample's results do not depend on the processor, nor on the other samples. Only the sign and payload of a NaN
/// are left open.
///
/// MKL's matrix product has these bits on one thread, from 4 samples and 12 columns of the result on, on the processors
/// that were tried. Whoever needs LibTorch's bits compares first, as product_order.h does.
struct FewSamplesProducts {
  /// out(s, n) = bias(n) + the sum over k of input(s, k) * weight(n, k)
  void (*forward)(const FewSamplesWork& work);
  /// out(s, k) = the sum over n of input(s, n) * weight(n, k)
  void (*input_gradient)(const FewSamplesWork& work);
};

/// The products for this processor, or null where LOCKSTEP_SIMD or the processor leaves no fused multiply-add. Bits do
/// not depend on the choice.
const FewSamplesProducts* few_samples_products();

/// How many floats of scratch memory a product needs; enough for both.
int64_t few_samples_scratch(int64_t samples, int64_t rows, int64_t columns);

/// A sum of `depth` products is cut into chains of this length; the last chain may be shorter.
inline int64_t chain_length(int64_t depth) {
  constexpr int64_t kLongestChain = 192;
  if (depth <= kLongestChain) return depth;
  return depth < 2 * kLongestChain ? depth / 2 : kLongestChain;
}

}  // namespace lockstep::internal
