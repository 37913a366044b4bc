// A replica's loss, times its part of the whole batch.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>

namespace lockstep::internal {

/// How often a replica has called scale_loss in training, and how often of these with a weight above 0. The counts only
/// grow: who wants those of a stretch of time takes a difference.
struct ScaleCalls {
  int64_t all = 0;
  int64_t weighted = 0;

  ScaleCalls since(const ScaleCalls& mark) const { return {all - mark.all, weighted - mark.weighted}; }
  /// Whether there were calls and none had a weight: then the replica's gradients count as zero.
  bool weightless() const { return all > 0 && weighted == 0; }
  /// Whether some call had no weight.
  bool had_empty_part() const { return all > weighted; }
};

inline ScaleCalls later(const ScaleCalls& a, const ScaleCalls& b) { return a.all >= b.all ? a : b; }

/// `loss` times `weight`, in value and gradient the bits of LibTorch's own product. Where the loss is one float or
/// double of the host, one short node of the graph instead of an operator each way: in a small model's step these two
/// cost more than everything else of ours.
at::Tensor weighted_loss(const at::Tensor& loss, double weight);

/// An exact 0 in place of `loss`, which may be NaN (the mean of nothing), with `loss`'s graph behind it: a backward
/// from it visits the graph, so that meeting points in it are kept, and brings no gradient to anything.
at::Tensor zero_that_keeps_graph(const at::Tensor& loss);

}  // namespace lockstep::internal
