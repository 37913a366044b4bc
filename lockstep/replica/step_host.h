// What a step reaches beyond its replicas: an interface that the strategy implements.
#pragma once

namespace lockstep {

class Strategy;

namespace internal::inline variable {
class VariableRegistry;
}  // namespace internal::variable
namespace internal::inline replica {

/// Used inside runs only; it lives as long as its strategy.
class StepHost {
 public:
  virtual ~StepHost() = default;
  /// The strategy that a merge function is given.
  virtual Strategy& strategy() = 0;
  /// The strategy's variables, for ReplicaContext::make_variable.
  virtual VariableRegistry& variables() = 0;
};

}  // namespace internal::replica
}  // namespace lockstep
