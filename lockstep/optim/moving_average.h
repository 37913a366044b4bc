// Moving averages of weights: computed once for all replicas, and put in the weights' place for an evaluation.
#pragma once

#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "lockstep/variable/variable.h"

namespace lockstep {

class ReplicaContext;

namespace internal::inline replica {
class ReplicaGroup;
}  // namespace internal::replica
namespace internal::inline variable {
class VariableRegistry;
}  // namespace internal::variable
namespace internal::inline optim {
class MovingAverageState;
}  // namespace internal::optim

struct MovingAverageOptions {
  double decay = 0.999;          // the share of an average that an update keeps, from 0 to below 1
  bool warm_up = false;          // forgets early weights faster: update n, from 0, keeps at most (1 + n) / (10 + n)
  std::string name = "average";  // averages are variables named "<variable>/<name>"
};

/// While it lives, averages stand in for their variables. It can be moved, but not copied. Let it end outside of steps.
class [[nodiscard]] SwapScope {
 public:
  /// Puts the variables' own values back, bit by bit.
  ~SwapScope();
  SwapScope(SwapScope&&) noexcept = default;
  SwapScope& operator=(SwapScope&&) = delete;

 private:
  friend class internal::MovingAverageState;
  SwapScope() = default;
  std::vector<std::shared_ptr<internal::VariableState>> variables_;
};

/// A handle. Its copies mean the same averages, which live as long as any copy and may outlive their strategy.
///
/// An average is a mirrored variable of the strategy, float32 where its variable is of half precision, and the
/// variable's dtype otherwise. A failed run leaves it as it was. It needs no all-reduce, because replicas have the same
/// weights. Where Replicated::load gives a variable other values, its average gets them too; where it does so for all
/// variables of a MovingAverage, the next update is the first one. Variable::assign leaves averages as they are, and so
/// does a restore that has none (RestoreInfo::left_old). Buffers, such as batch normalisation's statistics, have no
/// averages, and a swap leaves them as they are.
class MovingAverage {
 public:
  /// An empty handle, for members of classes: until it is given a value, every use is a UsageError.
  MovingAverage() = default;

  /// Meets the other replicas. Call it inside a step, after the optimizer's step, on the replica's thread. The first
  /// update copies the variables, as torch's AveragedModel does; each later one sets average = decay * average +
  /// (1 - decay) * variable. A UsageError inside evaluate() and while averages stand in; a DivergenceError where a
  /// foreign write to a variable or its average is found.
  void update(const ReplicaContext& context) const;

  /// Puts the averages in their variables' place, on all replicas, until the returned scope ends. Meanwhile
  /// Optimizer::step, update(), another swap and every assignment of these variables are UsageErrors. Outside of steps.
  SwapScope swap() const;

  /// The averages, in the order of their variables.
  const std::vector<Variable>& variables() const;
  /// The number of updates so far. It is kept in a variable, an int64 without dimensions named
  /// "<first variable>/<name>_updates". Outside of steps.
  int64_t updates() const;

  /// For the library's own use.
  MovingAverage(std::shared_ptr<internal::ReplicaGroup> group, internal::VariableRegistry& registry,
                const std::vector<Variable>& variables, const MovingAverageOptions& options,
                const std::source_location& place);

 private:
  internal::MovingAverageState& state() const;

  std::shared_ptr<internal::MovingAverageState> state_;
};

}  // namespace lockstep
