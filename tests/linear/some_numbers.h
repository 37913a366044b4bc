// Tensors of made numbers, of both signs and at most 1.
#pragma once

#include <torch/types.h>

namespace lockstep::testing {

/// The same for the same sizes and phase.
inline torch::Tensor some(at::IntArrayRef sizes, double phase) {
  return torch::arange(c10::multiply_integers(sizes), torch::kFloat).mul(0.7).add(phase).sin().view(sizes);
}

}  // namespace lockstep::testing
