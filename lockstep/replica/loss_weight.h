// Weighs a replica's loss by the replica's part of the whole batch.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>

namespace lockstep::internal {

/// How often a replica has called scale_loss in training, and how many of these calls had a weight above 0. The counts
/// only grow: the calls between two moments are the difference of two counts.
struct ScaleCalls {
  int64_t all = 0;
  int64_t weighted = 0;

  ScaleCalls since(const ScaleCalls& mark) const { return {all - mark.all, weighted - mark.weighted}; }
  /// Whether there were calls and all had weight 0: then the replica's gradients count as zero.
  bool weightless() const { return all > 0 && weighted == 0; }
  /// Whether at least one call had weight 0.
  bool had_empty_part() const { return all > weighted; }
};

inline ScaleCalls later(const ScaleCalls& a, const ScaleCalls& b) { return a.all >= b.all ? a : b; }

/// `loss` times `weight`, with the bits of LibTorch's own product in value and gradient. For one float or double in the
/// host's memory it makes one short node of the graph instead of calling an operator forward and one backward: in the
/// step of a small model these two cost more than everything else that the library does.
at::Tensor weighted_loss(const at::Tensor& loss, double weight);

/// An exact 0 in place of `loss`, which may be NaN (the mean of no samples). It keeps the graph of `loss`: a backward
/// from it visits the graph, so that the meeting points in it are kept, and gives no gradient to any tensor.
at::Tensor zero_that_keeps_graph(const at::Tensor& loss);

}  // namespace lockstep::internal
