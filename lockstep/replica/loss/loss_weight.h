// Weighs a replica's loss by the replica's part of the whole batch, and counts the backwards that go through such
// losses.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <source_location>

#include "lockstep/replica/loss/loss_graph.h"

namespace lockstep::internal::inline replica {

/// How many losses that scale_loss has weighed a replica's backwards have gone through, and how many of these had a
/// weight above 0. The counts only grow: what lies between two moments is the difference of two counts.
struct ScaledBackwards {
  int64_t all = 0;
  int64_t weighted = 0;

  ScaledBackwards since(const ScaledBackwards& mark) const { return {all - mark.all, weighted - mark.weighted}; }
  /// Whether there were such losses and all had weight 0: then the replica's gradients count as zero.
  bool weightless() const { return all > 0 && weighted == 0; }
  /// Whether at least one of them had weight 0.
  bool had_empty_part() const { return all > weighted; }
};

inline ScaledBackwards later(const ScaledBackwards& a, const ScaledBackwards& b) { return a.all >= b.all ? a : b; }

/// One backward through losses that scale_loss has weighed.
struct LossPass {
  int64_t number = 0;               // from 1; 0: none
  int64_t step = 0;                 // of the run in which it was made
  std::source_location place = {};  // of the first of its calls of scale_loss
  double weight = 0;                // the largest weight of its losses
  bool is_of_batch = false;         // a loss had the weight of its replica's part of the Batch, so that all replicas'
                                    // weights add up to 1
  LossGraph graph = {};             // of the first of its losses, where backwards are looked at
};

/// What the backwards of one replica have gone through. The nodes of graphs, which may outlive the replica, share it.
/// Used by the thread of the replica's backwards, and while the replica is at rest.
class ScaledLosses {
 public:
  /// A loss, as scale_loss was called. `rows` is the number of rows in the replica's part of the Batch.
  struct Loss {
    double weight;
    bool is_of_batch = false;
    int64_t rows = 0;
    std::source_location place = {};
  };

  void begin_run(int64_t step) {
    step_ = step;
    asked_for_counts_ = false;
    is_open_ = false;  // a backward of an earlier run may have thrown
  }
  /// Call in a backward that goes through the loss. `root` is the node of the loss before it was weighed, or null;
  /// `gradient` is the loss's.
  static void went_through(const std::shared_ptr<ScaledLosses>& self, const Loss& loss, torch::autograd::Node* root,
                           const at::Tensor& gradient);
  /// Call where a loss of weight 1 needs no look at its backward: it counts as if one had gone through it.
  void count_whole() {
    ++counts_.all;
    ++counts_.weighted;
  }
  const ScaledBackwards& counts() const { return counts_; }
  /// The backward under way; null where it has gone through no such loss. Only between begin_look() and end_look(),
  /// which whoever reads it calls: at other times backwards are counted alone.
  const LossPass* under_way() const { return is_open_ ? &pass_ : nullptr; }
  void begin_look() { ++lookers_; }
  void end_look() { --lookers_; }

  /// The step of this run has asked for numbers by which a program may weigh its loss without scale_loss: how many
  /// replicas or samples there are, or a sum over the replicas.
  void ask_for_counts() { asked_for_counts_ = true; }
  bool asked_for_counts() const { return asked_for_counts_; }

 private:
  int64_t step_ = 0;
  ScaledBackwards counts_;
  LossPass pass_;
  bool is_open_ = false;
  bool asked_for_counts_ = false;
  int lookers_ = 0;
};

/// `loss` times `weight`, with the bits of LibTorch's own product in value and gradient. For one float or double in the
/// host's memory it makes one short node of the graph instead of calling an operator forward and one backward: in the
/// step of a small model these two cost more than everything else that the library does.
at::Tensor weighted_loss(const at::Tensor& loss, double weight);
/// The same for `loss.weight`; a backward through the result tells `losses`.
at::Tensor weighted_loss(const at::Tensor& mean_loss, const ScaledLosses::Loss& loss,
                         const std::shared_ptr<ScaledLosses>& losses);
/// A backward through `result`, which was made of `mean_loss`, tells `losses`.
void watch_backward(const at::Tensor& result, const at::Tensor& mean_loss, const ScaledLosses::Loss& loss,
                    const std::shared_ptr<ScaledLosses>& losses);

/// Whether `loss` can be read without waiting for a device and is infinite or NaN.
bool is_seen_not_finite(const at::Tensor& loss);

/// An exact 0 in place of `loss`, which may be NaN (the mean of no samples). It keeps the graph of `loss`: a backward
/// from it visits the graph, so that the meeting points in it are kept, and gives no gradient to any tensor.
at::Tensor zero_that_keeps_graph(const at::Tensor& loss);

}  // namespace lockstep::internal::replica
