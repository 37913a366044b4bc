// In which order LibTorch adds in a matrix product of a linear layer: whether the library can compute the same bits.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/linear/few_samples_product.h"
#include "lockstep/reduce/loops/outer_product.h"

namespace lockstep::internal::inline linear {

/// The products of a linear layer with a weight of [rows, columns] for which the library has loops of its own.
enum class LinearProduct {
  kOutput,          // input times the transposed weight: few_samples_products()
  kOutputWithBias,  // the same and a bias
  kInputGradient,   // the output's gradient times the weight: few_samples_products()
};

/// The order in which LibTorch's product adds; none where it has the bits of none that the library knows. The products
/// are compared on test numbers, once for each product, shape, number of threads, precision and floating-point modes of
/// the calling thread. Other threads that ask for the same meanwhile wait. Requires that the library has this product
/// on this processor.
std::optional<SumOrder> sum_order_of_libtorch(LinearProduct product, int64_t samples, int64_t rows, int64_t columns);

/// The same for the gradient of the weight, the transposed output's gradient times the input: for which sums of zeros
/// Factors have the bits of LibTorch's product; none where they have not. Requires Factors::available().
std::optional<ZeroSums> zero_sums_of_libtorch(int64_t samples, int64_t rows, int64_t columns);

}  // namespace lockstep::internal::linear
