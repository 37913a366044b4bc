// Notices gradients that were changed in place between backward and the optimizer's step.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/optim/accumulation_hooks.h"
#include "lockstep/reduce/factors.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal {

/// A hook behind each variable's gradient accumulator notes what backward left: the gradient's version counter, and a
/// checksum of its first bytes, since a write through .data() (LibTorch's clip_grad_norm_) moves no version counter. A
/// later difference was not made by a backward, however many there are, with or without create_graph.
///
/// A program that makes this mistake makes it in every step. So only the first steps and a few of the later ones are
/// watched; in all other steps autograd calls nothing of it.
class GradientWatch {
 public:
  /// Begins to watch where `watches`. There is nothing to watch with one replica, whose gradient is the sum, and in
  /// variables that are trained locally. Call while all replicas are at rest.
  GradientWatch(std::vector<std::shared_ptr<VariableState>> variables, int64_t replicas, bool watches);

  // For local replica r; call from its thread.

  /// The first variable whose gradient is no longer what the last backward left.
  std::optional<std::size_t> changed(int64_t r) const;
  /// Call after a step has consumed the gradients. Decides whether the next step is watched.
  void end_step(int64_t r);
  /// Call after the gradients were dropped without a step.
  void forget(int64_t r);

 private:
  /// What backward left of one gradient.
  struct Record {
    // Nothing: no gradient. A weak pointer, so that no later tensor can have its address.
    std::optional<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> gradient = std::nullopt;
    uint32_t version = 0;
    uint64_t sample = 0;
    std::shared_ptr<const Factors> factors = nullptr;  // in place of a sample, where the gradient has no memory
  };
  struct alignas(64) OfReplica {
    int64_t steps = 0;
    std::shared_ptr<std::vector<Record>> records;  // by variable; shared with the hooks; null: not watched
    AccumulationHooks hooks;
  };

  static Record record_of(const at::Tensor& gradient);
  void begin(int64_t r);

  const std::vector<std::shared_ptr<VariableState>> variables_;
  const bool watches_;
  std::vector<OfReplica> replicas_;
};

}  // namespace lockstep::internal
