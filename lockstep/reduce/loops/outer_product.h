// Sums of outer products: the gradient of a linear layer's weights, made from its factors a few samples at a time.
#pragma once

#include <cstdint>

namespace lockstep::internal::inline reduce {

/// Factors are packed so that a tile of the gradient reads memory in order: `left` in groups of kLeftGroup rows,
/// [group][sample][kLeftGroup], and `right` in panels of kRightPanel columns, [panel][sample][kRightPanel]. The last
/// group and panel are filled up with zeros.
inline constexpr int64_t kLeftGroup = 4;
inline constexpr int64_t kRightPanel = 48;

/// What matrix libraries make of a sum whose products are all zero, or round to zero.
enum class ZeroSums {
  kPositive,  // +0 is added at the end, so that no sum is -0: MKL on AMD's processors
  kSigned,    // the sum may be -0: MKL on Intel's processors with AVX-512
};

/// What a loop of outer products is given.
struct OuterProductWork {
  const float* left;   // packed; `samples` for each row
  const float* right;  // packed; `samples` for each column
  int64_t samples;     // at least 1
  int64_t columns;
  int64_t first_row;  // a multiple of kLeftGroup
  int64_t num_rows;
  float* out;  // dense, row by row, from first_row on
  bool add;    // adds the sums to `out` instead of writing them there
  ZeroSums zero_sums;
};

/// Computes rows [first_row, first_row + num_rows) of the matrix whose element (i, j) is the sum over samples s of
/// left(s, i) * right(s, j). The samples are added in order to +0 by fused multiply-adds, and ZeroSums says what is
/// done at the end; the sum of one sample is the rounded product itself, which may be -0. MKL's matrix product adds so
/// where it keeps one accumulator for each element.
using OuterProduct = void (*)(const OuterProductWork& work);

/// The loop for this processor, or null where LOCKSTEP_SIMD or the processor leaves no fused multiply-add. Bits do not
/// depend on the choice.
OuterProduct outer_product();

}  // namespace lockstep::internal::reduce
