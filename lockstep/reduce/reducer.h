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
  /// One tensor from `values`, replica r's being values[r]: dense, in the host's memory, without gradient, of one shape
  /// and dtype, not always contiguous, and not to be written. The result is a new tensor of that shape and dtype;
  /// another is a UsageError that names the reducer. Integers whose kMean is asked for come as int64, and the result is
  /// float64. Extremes over axes come without the replicas that have no elements. A function of its arguments alone, in
  /// every bit, or promise 2 does not hold. Called on any replica's thread, several at a time for different values.
  virtual at::Tensor reduce(Reduction reduction, std::span<const at::Tensor> values) const = 0;
  /// Whether reduce() does what TreeReducer's does, in every bit. Then the library need not call it: whoever adds takes
  /// the replicas' own values and adds them in tree order where it needs the sum, as the optimizer's step does in its
  /// one pass over memory. Otherwise, which is the default, what is to be added is the one value that reduce() gives. A
  /// reducer that asks a TreeReducer for its sums returns true. The same answer each time.
  virtual bool in_tree_order() const;
};

/// In the order of docs/determinism.md, the same for any lanes; what strategies do unless they are given another.
class TreeReducer final : public Reducer {
 public:
  std::string describe() const override;
  at::Tensor reduce(Reduction reduction, std::span<const at::Tensor> values) const override;
  bool in_tree_order() const override;
};

namespace internal {
/// What `reducer` makes of the values, checked. All have one shape and dtype.
at::Tensor reduce_by(const Reducer& reducer, Reduction reduction, std::span<const at::Tensor> values);
}  // namespace internal

}  // namespace lockstep
