// Whether a loss depends on rows of padding, which have weight 0.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>

namespace lockstep::internal::inline replica {

/// Whether `loss` was computed from tensors of `rows` rows, and its gradient with respect to each of them is not zero
/// beyond the first `samples` rows: then it is no mean over the samples. It computes these gradients a second time,
/// from the loss back to the last products. Where it finds no such tensor, or none before what it does not know, such
/// as a function of the program's own or a tensor with hooks, it says false. It leaves the graph as it is.
bool depends_on_padding(const at::Tensor& loss, int64_t rows, int64_t samples);

}  // namespace lockstep::internal::replica
