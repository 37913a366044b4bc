// The products of a linear layer whose weight does not fit in the caches, for few samples: the layer's output and the
// gradient of its input.
#pragma once

#include <cstdint>

namespace lockstep::internal::inline linear {

/// The order in which the products of one result are added. Each order begins its chains with +0 and adds to a chain by
/// fused multiply-adds, in order. The orders are those of MKL's kernels; docs/few-samples-products.md says where they
/// were seen.
enum class SumOrder {
  /// The depth is cut into chains, as chain_end() says. They are added up in order, to the bias or to +0.
  kChainsOf192,
  /// Chains of 384; a depth of 385 to 767 is two halves. Without a bias, the sum begins with the first chain.
  kChainsOf384,
  /// The same, but the last two chains have equal length, or differ by one, where 385 to 767 products are left.
  kBalancedChainsOf384,
  /// Product k belongs to chain k mod 16. The chains i, i + 4, i + 8 and i + 12 are added up in order, which gives s0,
  /// s1, s2 and s3. Then (s0 + s1) + (s2 + s3) is added to the bias or to +0. There is no input_gradient in this order.
  kInterleavedChains,
};

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
  SumOrder order;     // of input_gradient not kInterleavedChains
};

/// Both products run on the calling thread, in its floating-point modes, and read the weight from memory once. Any
/// thread may call; calls with `out` and `scratch` of their own may run at the same time.
///
/// The order of additions is the work's `order`, and depends on nothing else but the depth of the product: `columns`
/// for forward, `rows` for input_gradient. So the bits of a sample's results do not depend on the processor, nor on the
/// other samples. Only the sign and payload of a NaN are left open.
///
/// MKL's matrix product has the bits of one of these orders on one thread, on the processors that were tried. Whoever
/// needs LibTorch's bits compares first, as product_order.h does.
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

/// The end of the chain that begins with product `begin` of a sum of `depth` products, where `begin` is 0 or
/// the end of a chain. Not for kInterleavedChains.
inline int64_t chain_end(SumOrder order, int64_t depth, int64_t begin) {
  const int64_t rest = depth - begin;
  if (order == SumOrder::kChainsOf192) {
    if (depth > 192 && depth < 2 * 192) return begin + (rest < depth / 2 ? rest : depth / 2);
    return begin + (rest < 192 ? rest : 192);
  }
  if (rest <= 384) return depth;
  const bool halves = rest < 2 * 384 && (order == SumOrder::kBalancedChainsOf384 || begin == 0);
  return begin + (halves ? (rest + 1) / 2 : 384);
}

/// Whether a sum without a bias begins with +0, and so is never -0.
inline bool begins_with_zero(SumOrder order) {
  return order == SumOrder::kChainsOf192 || order == SumOrder::kInterleavedChains;
}

}  // namespace lockstep::internal::linear
