// The fourth of the four decisions that make a strategy: when replicas' parameters meet. The others are
// replica/topology.h, variable/placement.h and reduce/reducer.h.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/variable/placement.h"

namespace lockstep {

/// Decides whether all replicas share a parameter, which an optimizer's step then updates by the sum of their
/// gradients, or each replica trains its own component, and after which steps these components become their mean.
class Synchronization {
 public:
  virtual ~Synchronization() = default;
  /// "at every step": what describe() says after "parameters meet ".
  virtual std::string describe() const = 0;
  /// Whether a trainable parameter of a module is *trained locally*. Such a parameter is an on-read variable with
  /// kMean, and the placement is not asked. Each replica has its own component, which an optimizer updates by that
  /// replica's gradient alone, times the number of replicas. The result depends on the argument alone.
  virtual bool trains_locally(const NewVariable& variable) const = 0;
  /// Whether the components of parameters that are trained locally become their mean when `steps` runs are complete.
  /// The result depends on the argument alone.
  virtual bool averages_after(int64_t steps) const = 0;
};

/// All replicas share every parameter. This is the default of all strategies.
class EveryStepSynchronization final : public Synchronization {
 public:
  std::string describe() const override;
  bool trains_locally(const NewVariable& variable) const override;
  bool averages_after(int64_t steps) const override;
};

}  // namespace lockstep
