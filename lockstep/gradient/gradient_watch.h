// Notices gradients that were changed between backward and the optimizer's step, and losses that add up in them.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/gradient/accumulation_hooks.h"
#include "lockstep/reduce/factors.h"
#include "lockstep/replica/loss/loss_weight.h"
#include "lockstep/variable/variable_state.h"

namespace lockstep::internal::inline gradient {

/// A hook behind each variable's gradient accumulator notes what backward left: the gradient's version counter, and a
/// checksum of its first bytes, since a write through .data() (LibTorch's clip_grad_norm_) moves no version counter. A
/// later difference was not made by a backward, however many there are, with or without create_graph; nor was another
/// tensor in its place (`p.mutable_grad() = p.grad() * c`). It also notes which losses the backwards went through.
///
/// A program that makes such a mistake makes it in every step. So only the first steps and a few of the later ones are
/// watched; in all other steps autograd calls nothing of it.
class GradientWatch {
 public:
  /// Begins to watch where `watches`. There is nothing to watch with one replica, whose gradient is the sum. Call while
  /// all replicas are at rest.
  GradientWatch(std::vector<std::shared_ptr<VariableState>> variables, int64_t replicas, bool watches);
  ~GradientWatch();
  GradientWatch(const GradientWatch&) = delete;
  GradientWatch& operator=(const GradientWatch&) = delete;

  // For local replica r; call from its thread.

  /// The first variable whose gradient is no longer what the last backward left.
  std::optional<std::size_t> changed(int64_t r) const;

  /// A variable that has got gradients, where no backward since the last step or drop of gradients has gone through a
  /// loss that scale_loss has weighed, and the step could not have weighed its loss itself.
  std::optional<std::size_t> unweighed(int64_t r) const;

  /// Whether a backward of any local replica went through such a loss, or could have. While all replicas are at rest.
  bool any_may_be_weighed() const;

  /// Two backwards whose gradients are added though each has the weight of a whole batch.
  struct AddedUp {
    LossPass first;
    LossPass last;
  };
  /// The first two. These are backwards of the same kind of loss into the same variables: losses of two kinds are terms
  /// of one. They were made in runs of different steps; or in one run, each of a micro-batch, which has fewer rows than
  /// the replica's part of the Batch. Losses that the program has multiplied or divided by a number are not among them.
  /// Of losses with counts of the program's own, it is known where the local replicas' weights are far above 1.
  /// Call while all replicas are at rest, before end_step().
  std::optional<AddedUp> added_up() const;

  /// Call after a step has consumed the gradients. Decides whether the next step is watched.
  void end_step(int64_t r);
  /// Call after the gradients were dropped without a step.
  void forget(int64_t r) noexcept;

 private:
  /// What backward left of one gradient.
  struct Record {
    // Nothing: no gradient. A weak pointer, so that no later tensor can have its address.
    std::optional<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> gradient = std::nullopt;
    uint32_t version = 0;
    uint64_t sample = 0;
    const void* memory = nullptr;
    std::shared_ptr<const Factors> factors = nullptr;  // in place of a sample, where the gradient has no memory
    bool is_of_backward = false;

    /// The checksum of the first bytes, as if factors were in memory.
    uint64_t bytes() const;
  };
  /// A backward whose gradients are in the sums.
  struct Pass {
    LossPass loss;
    uint64_t variables = 0;  // a digest of those that it went into
  };
  /// What backwards have left since the last step or drop of gradients.
  struct Left {
    std::vector<Record> records;  // by variable
    std::vector<Pass> passes;     // the first ones
    bool may_be_weighed = false;  // at least one went through a weighed loss, or could have been weighed by hand

    void note(std::size_t i, const at::Tensor& gradient, const ScaledLosses& losses);
  };
  struct alignas(64) OfReplica {
    int64_t steps = 0;
    std::shared_ptr<Left> left;            // null in steps that are not watched
    std::shared_ptr<ScaledLosses> losses;  // where it is not null
    AccumulationHooks hooks;
  };

  static Record record_of(const at::Tensor& gradient);
  /// Of the first kind of loss, over runs of several steps: the sum of its weights, counted once in each; otherwise 0.
  static double weight_over_steps(const std::vector<Pass>& passes);
  static bool is_same_tensor(const Record& record, const at::Tensor& gradient);
  void begin(int64_t r);

  const std::vector<std::shared_ptr<VariableState>> variables_;
  const bool watches_;
  std::vector<OfReplica> replicas_;
};

}  // namespace lockstep::internal::gradient
