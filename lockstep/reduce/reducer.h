// The third of the four decisions that make a strategy: how values are added across replicas. The others are
// replica/topology.h, variable/placement.h and variable/synchronization.h.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/reduce/reduction.h"

namespace lockstep {

/// Decides how several replicas' values become one, wherever that happens: gradients in an optimizer's step, all_reduce
/// and Strategy::reduce, assignments and reads with an aggregation.
class Reducer {
 public:
  virtual ~Reducer() = default;
  /// "in tree order": what describe() says after "replicas' values are added ".
  virtual std::string describe() const = 0;
  /// One tensor from `values`, replica r's being values[r]: dense, without gradient, of one shape and dtype, and not to
  /// be written. The result is a new tensor of that shape and dtype (kMean of integers: float64); another is a
  /// UsageError that names the reducer. A function of its arguments alone, in every bit, or promise 2 does not hold.
  /// Called on any replica's thread, several at a time for different values.
  virtual at::Tensor reduce(Reduction reduction, std::span<const at::Tensor> values) const = 0;
};

/// In the order of docs/determinism.md, the same for any lanes; what strategies do unless they are given another. The
/// optimizer's step then adds gradients and updates variables in one pass over memory.
class TreeReducer final : public Reducer {
 public:
  std::string describe() const override;
  at::Tensor reduce(Reduction reduction, std::span<const at::Tensor> values) const override;
};

namespace internal {
/// What `reducer` makes of the values, checked.
at::Tensor reduce_by(const Reducer& reducer, Reduction reduction, std::span<const at::Tensor> values);
}  // namespace internal

}  // namespace lockstep
