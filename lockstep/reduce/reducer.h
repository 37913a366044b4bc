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
  /// Makes one tensor of `values`, where values[r] is replica r's. They are dense, in the host's memory, without
  /// gradient, of one shape and dtype, not always contiguous, and must not be written. The result is a new tensor of
  /// that shape and dtype; for another result the caller gets a UsageError that names the reducer. For kMean of
  /// integers the values come as int64, and the result is float64. For kMin and kMax over axes the replicas without
  /// elements are left out. The result must be a function of the arguments alone, in every bit; otherwise the promise
  /// of equal bits (docs/determinism.md) does not hold. Called on any replica's thread, and on several threads at a
  /// time for different values.
  virtual at::Tensor reduce(Reduction reduction, std::span<const at::Tensor> values) const = 0;
  /// Whether reduce() gives the bits that TreeReducer's gives, for all values. Then the library need not call it: it
  /// may add the replicas' own values in tree order where it needs the sum, as the optimizer's step does in its one
  /// pass over memory. Otherwise, which is the default, the library uses the one value that reduce() gives. A reducer
  /// that asks a TreeReducer for its sums returns true. The answer must always be the same.
  virtual bool in_tree_order() const;
};

/// Adds in the order of docs/determinism.md, which is the same for any lanes. Strategies use it unless they are given
/// another reducer.
class TreeReducer final : public Reducer {
 public:
  std::string describe() const override;
  at::Tensor reduce(Reduction reduction, std::span<const at::Tensor> values) const override;
  bool in_tree_order() const override;
};

namespace internal::inline reduce {
/// The result of `reducer` for the values, which have one shape and dtype. Throws a UsageError where it is not what
/// Reducer::reduce promises.
at::Tensor reduce_by(const Reducer& reducer, Reduction reduction, std::span<const at::Tensor> values);
}  // namespace internal::reduce

}  // namespace lockstep
