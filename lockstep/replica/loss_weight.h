// A replica's loss, times its part of the whole batch.
#pragma once

#include <ATen/core/TensorBody.h>

namespace lockstep::internal {

/// `loss` times `weight`, in value and gradient the bits of LibTorch's own product. Where the loss is one float or
/// double of the host, one short node of the graph instead of an operator each way: in a small model's step these two
/// cost more than everything else of ours.
at::Tensor weighted_loss(const at::Tensor& loss, double weight);

/// An exact 0 in place of `loss`, which may be NaN (the mean of nothing), with `loss`'s graph behind it: a backward
/// from it visits the graph, so that meeting points in it are kept, and brings no gradient to anything.
at::Tensor zero_that_keeps_graph(const at::Tensor& loss);

}  // namespace lockstep::internal
